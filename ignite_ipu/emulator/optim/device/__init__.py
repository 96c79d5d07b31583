"""An optimizer's update as the device computes it."""
