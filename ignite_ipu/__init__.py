"""Train and evaluate pytorch-ignite and accelerate code on Graphcore IPUs, or on an emulator of PopTorch."""

from __future__ import annotations

from importlib import import_module
from typing import Dict, List

__version__ = "0.1.0"

# Public name -> the module that defines it. A name is imported when it is first used, so that `import ignite_ipu` loads
# neither torch nor anything else. To add one: a row here, and the same import under TYPE_CHECKING below.
_EXPORTS: Dict[str, str] = {}

__all__ = ["__version__", *_EXPORTS]


def __getattr__(name: str) -> object:
    try:
        module = _EXPORTS[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> List[str]:
    return sorted({*globals(), *__all__})
