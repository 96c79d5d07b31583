"""What a forward may do while it is traced: losses, hooks, autograd functions, half precision, model libraries."""
