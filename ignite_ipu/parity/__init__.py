"""Whole scripts trained twice, by PyTorch on the host and on the device, and compared update by update.

No other room imports this one, which imports `running` for the run on the device. Start reading with `runs`, then
`recorder` and `comparison`.
"""
