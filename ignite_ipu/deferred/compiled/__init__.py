"""A recorded step as a PopTorch program."""
