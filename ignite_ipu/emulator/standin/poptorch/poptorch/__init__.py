"""PopTorch's name for the emulator; on the path while `ignite_ipu.emulator.install()` is in force."""

from __future__ import annotations

from types import ModuleType as _ModuleType

from ignite_ipu import emulator as _emulator

_implemented_by = _emulator.__name__

# The sub-modules are this package's own, below.
globals().update(
    {
        name: getattr(_emulator, name)
        for name in _emulator.__all__
        if name not in _emulator.NOT_IN_POPTORCH and not isinstance(getattr(_emulator, name), _ModuleType)
    }
)

# As in PopTorch, `testing` is the one sub-module that must be imported by itself.
from poptorch import (  # noqa: E402, F401
    _impl,
    _poplar_executor,
    autocasting,
    enums,
    ops,
    optim,
    options,
    poptorch_core,
    profiling,
)
