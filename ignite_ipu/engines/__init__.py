"""Ignite engines whose steps run on the device: factories, loaders, counters."""
