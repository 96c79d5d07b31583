"""The same training steps natively and on the device, compared layer by layer."""
