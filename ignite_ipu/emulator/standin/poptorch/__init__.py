"""PopTorch's name for the emulator; on the path while `ignite_ipu.emulator.install()` is in force."""

from __future__ import annotations

from ignite_ipu import emulator as _emulator

_implemented_by = _emulator.__name__

globals().update(
    {name: getattr(_emulator, name) for name in _emulator.__all__ if name not in _emulator.NOT_IN_POPTORCH}
)

# As in PopTorch, `testing` is the one sub-module that must be imported by itself.
from poptorch import autocasting, enums, ops, optim, options, poptorch_core, profiling  # noqa: E402, F401
