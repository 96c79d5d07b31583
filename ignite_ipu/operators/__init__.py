"""PopTorch 3.3's operators: the functions of PyTorch that compile, and the arguments that do not.

The emulator refuses by the table, and `ignite-ipu check` reports by it. This room imports nothing of this package, and
no torch, so that `check` starts quickly. Start reading with `table`.
"""
