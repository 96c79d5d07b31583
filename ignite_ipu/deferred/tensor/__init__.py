"""The deferred tensor, and what functions do with one."""
