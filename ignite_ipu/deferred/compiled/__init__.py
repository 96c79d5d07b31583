"""A recorded step as a PopTorch program: the module that is compiled, its programs, and their calls.

The room imports `graph` and, for gradients and written tensors, `tensor`. Start reading with `step`, then `training`
and its two kinds, `fused_programs` and `host_programs`.
"""
