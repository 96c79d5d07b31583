"""Models that `torch.compile` has wrapped: the wrapper stays, with the names it gives, and the compiler is left out.

PopTorch compiles the model itself. A script holds the wrapper: its `state_dict()` has the prefix `_orig_mod.`, as
checkpoints of a GPU have, and the model within is its `_orig_mod`.
"""

from __future__ import annotations

import copy
from typing import Any, Dict

from torch import nn

from ignite_ipu.errors import logger
from ignite_ipu.program.derived_class import derived_once
from ignite_ipu.torch_names.files import is_of_compiler
from ignite_ipu.torch_names.modules import (
    WRAPPER_CONTEXT,
    WRAPPER_INITIALIZATION,
    compiled_call_of,
    compiled_original,
    forget_compiled_call,
)

_NAME = "OptimizedModule"


def is_compiled(module: Any) -> bool:
    """Return whether a module is the wrapper that `torch.compile` puts around another one."""
    # By name, because its class takes long to import.
    return type(module).__name__ == _NAME and is_of_compiler(type(module))


def leave_out_compiler(model: nn.Module, log: bool = True) -> None:
    """Let a model and its parts be called as they are written, where `torch.compile` or `Module.compile` has them.

    Args:
        model: The model, changed in place.
        log: Whether to log a warning for each.
    """
    for module in model.modules():
        if is_compiled(module) and type(module).__mro__[1] is nn.Module:
            kind, name = _called_plainly(type(module)), type(compiled_original(module)).__name__
            for attribute in ("forward", "_forward"):  # PyTorch keeps the call of its compiler in the object
                module.__dict__.pop(attribute, None)
            module.__class__ = kind
        elif compiled_call_of(module) is not None:
            name = type(module).__name__
            forget_compiled_call(module)
        else:
            continue
        if log:
            logger.warning("torch.compile of the %s is left out: PopTorch compiles it.", name)


@derived_once
def _called_plainly(base: Any) -> Any:
    """Return the class of wrappers that call the model within as it is written."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return compiled_original(self)(*args, **kwargs)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return nn.Module.__call__(self, *args, **kwargs)

    def initialize(self: Any) -> None:
        """Leave out PyTorch's work for a new wrapper, and for one from a file."""

    def deepcopy(self: Any, memo: Dict[int, Any]) -> Any:
        made: Any = object.__new__(type(self))
        memo[id(self)] = made
        # The compiler holds functions and locks, and is the same for all.
        shared = {name: value for name, value in self.__dict__.items() if name == WRAPPER_CONTEXT}
        own = {name: value for name, value in self.__dict__.items() if name not in shared}
        made.__dict__.update({**copy.deepcopy(own, memo), **shared})
        return made

    def reduce_ex(self: Any, protocol: Any) -> Any:
        return base, (compiled_original(self), getattr(self, WRAPPER_CONTEXT))  # files are of PyTorch's class

    members = {
        "__call__": call,
        "__deepcopy__": deepcopy,
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__reduce_ex__": reduce_ex,
        WRAPPER_INITIALIZATION: initialize,
        "forward": forward,
    }
    return type(_NAME, (base,), members)
