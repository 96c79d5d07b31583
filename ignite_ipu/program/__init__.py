"""What PopTorch compiles: step modules, their inputs, their options, and what makes a compiled program stale."""
