"""The deferred tensor, and the functions that take one.

The room imports `graph`, and asks loops by its protocols. Start reading with `tensor`, then `calls` and `reads`.
"""
