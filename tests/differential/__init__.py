"""Random programs, each run in eager PyTorch and on the device, whose records must be the same."""
