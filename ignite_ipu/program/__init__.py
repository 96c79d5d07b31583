"""Programs that PopTorch compiles: step modules, inputs, options, and the changes that make a program stale."""
