"""`torch.optim` and `poptorch.optim`: conversion, the link of a user's optimizer to the device's, and its state.

Sessions and captured loops import `conversion` and `host_link`; the room imports `capabilities`, which has the
treatment of each optimizer. Start reading with `kinds`, then `conversion`.
"""
