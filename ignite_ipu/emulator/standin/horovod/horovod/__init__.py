"""Horovod's name for the functions that PopTorch programs use of `horovod.torch`, where Horovod is not installed."""
