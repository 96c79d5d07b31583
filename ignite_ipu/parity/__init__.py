"""Whole scripts trained twice, by PyTorch on the host and on the device, and compared update by update."""
