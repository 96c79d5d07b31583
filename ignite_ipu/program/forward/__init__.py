"""Forwards while they are traced: losses, hooks, autograd functions, half precision, model libraries."""
