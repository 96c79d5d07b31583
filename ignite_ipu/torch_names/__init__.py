"""Private names of PyTorch, Ignite and accelerate: the only modules that touch them.

Each name stands in a table with the version that it is known from, and with a sentence on the loss without it. A
release that drops a name costs the feature that needs it, never the import of this package. The name is replaced by a
fallback, or by a stand-in that raises `MissingNameError` on use.

This room imports nothing of this package, so that the emulator, which imports nothing of the shim, shares it.
Start reading with `table`.
"""

from __future__ import annotations

from ignite_ipu.torch_names.table import NAMES, MissingNameError, Name

__all__ = ["NAMES", "MissingNameError", "Name"]
