"""Ignite engines whose steps run on the device: factories, loaders, counters.

The doors are the functions of `factories`. The room imports `session`, which runs the steps, and leaves handlers of
users to `handlers`. Start reading with `factories`, then `engine`.
"""
