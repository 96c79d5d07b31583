"""PopTorch's name for the emulator; on the path while `ignite_ipu.emulator.install()` is in force."""

from __future__ import annotations

import contextlib as _contextlib
import importlib as _importlib
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
    _args_parser,
    _impl,
    _poplar_executor,
    _utils,
    autocasting,
    enums,
    ops,
    optim,
    options,
    poptorch_core,
    profiling,
)
from poptorch._poplar_executor import _OverwriteContextManager as _OverwriteContextManager  # noqa: E402

# Its graph library has parsers for the types of its batches, which PopTorch registers when it is imported.
with _contextlib.suppress(Exception):
    _importlib.import_module("poptorch_geometric.types").registerCustomArgParsers()
