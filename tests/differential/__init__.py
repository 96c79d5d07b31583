"""Random programs, each run natively and on the device, whose records must be the same."""
