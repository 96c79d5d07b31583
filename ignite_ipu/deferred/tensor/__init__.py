"""The deferred tensor, and the functions that take one."""
