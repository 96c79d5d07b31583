"""Hooks on gradients in a model that is trained: gradients are on the device alone, so no hook ever sees one."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch import nn
from torch.nn.modules import module as _of_all_modules
from torch.utils.hooks import RemovableHandle

from ignite_ipu.errors import LossError, listed
from ignite_ipu.program.function_mode import FunctionGuard

__all__ = ["GradientHookGuard", "GradientHooks"]

_OF_MODULES = ("_backward_hooks", "_backward_pre_hooks")
_ON_ALL: List[Dict[Any, Any]] = [getattr(_of_all_modules, f"_global{kind}") for kind in _OF_MODULES]
# Asked in the ordinary way, a parameter that PopTorch has wrapped downloads the weights first.
_OF_TENSORS: List[Callable[[torch.Tensor], Optional[Dict[Any, Any]]]] = [
    getattr(torch.Tensor, kind).__get__
    for kind in ("_backward_hooks", "_post_accumulate_grad_hooks")
    if hasattr(torch.Tensor, kind)  # the latter came with PyTorch 2.1
]
_REGISTER = [
    getattr(torch.Tensor, name)
    for name in ("register_hook", "register_post_accumulate_grad_hook")
    if hasattr(torch.Tensor, name)
]
_REMEDY = (
    "which would never run: gradients exist on the device alone. To clip them, use max_grad_norm or clip_grad_norm_; "
    "to keep some of a weight as it is, compute with a part that is detached; to scale them, use a parameter group "
    "with its own learning rate; to look at them in an Ignite engine, ignite_ipu.handlers.Gradients. Remove the hooks."
)


class GradientHookGuard(FunctionGuard):
    """Context in which a model's forward that registers a hook on a gradient raises `LossError`."""

    def check(self, func: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        """Refuse to register a hook on a gradient."""
        if func in _REGISTER:
            shape = tuple(args[0].shape)
            raise LossError(f"The model's forward calls {func.__name__}() on a tensor of shape {shape}, {_REMEDY}")


class GradientHooks:
    """Finds the hooks on gradients of one model; next to nothing is done while PyTorch registers no hooks.

    Args:
        model: The user's model.

    Attributes:
        handles: How many handles of hooks PyTorch had given out when there were none on gradients.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.handles = -1

    def problem(self) -> Optional[str]:
        """Return why the model cannot be trained with its hooks, None if it has none on gradients."""
        names = self._hooked()
        if not names:
            self.handles = RemovableHandle.next_id
            return None
        return f"Hooks on gradients are registered on {listed(names)}, {_REMEDY}"

    def _hooked(self) -> List[str]:
        with torch._C.DisableTorchFunctionSubclass():
            names = [
                name for name, tensor in self._model.named_parameters() if any(hooks(tensor) for hooks in _OF_TENSORS)
            ]
        names += [
            path or "the model"
            for path, module in self._model.named_modules()
            if any(module.__dict__.get(kind) for kind in _OF_MODULES)
        ]
        return [*names, "all modules"] if any(_ON_ALL) else names
