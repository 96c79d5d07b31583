"""Training on after a fault of the device: snapshots, replay, decisions, exit codes."""
