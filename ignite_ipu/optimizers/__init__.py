"""`torch.optim` and `poptorch.optim`: conversion, the link of a user's optimizer to the device's, and its state."""
