"""Programs that PopTorch compiles: step modules, their inputs, their options, and what makes a program stale."""
