"""PoplarExecutor, the wrappers of tensors it returns, and saving."""
