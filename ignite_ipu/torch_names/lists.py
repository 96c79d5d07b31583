"""PyTorch's private functions for arithmetic over lists of tensors, and its fused updates.

Without such a function its fallback computes the same with one call for each tensor.
"""

from __future__ import annotations

from typing import Any, Callable, List

import torch

from ignite_ipu.torch_names.table import NAMES, Name, find

__all__ = [
    "ZERO_ALL",
    "add",
    "add_",
    "addcdiv_",
    "addcmul",
    "addcmul_",
    "copy_",
    "div",
    "div_",
    "flatten_tensors",
    "fused_adam_",
    "fused_adamw_",
    "fused_sgd_",
    "has_fused_updates",
    "lerp_",
    "mul",
    "mul_",
    "norm",
    "sqrt",
    "sqrt_",
    "unflatten_tensors",
    "zero_",
]

Arithmetic = Callable[..., List[torch.Tensor]]
_SLOWER = "The emulator updates each weight in a call of its own, which is slower."


def _one_by_one(name: str) -> Callable[..., List[Any]]:
    """Return a function that calls a method of each tensor of a list with its share of the other lists."""

    def call(tensors: Any, *args: Any, **kwargs: Any) -> List[Any]:
        def share(index: int) -> List[Any]:
            return [value[index] if isinstance(value, (list, tuple)) else value for value in args]

        return [_call(name, tensor, share(index), kwargs) for index, tensor in enumerate(tensors)]

    return call


def _call(name: str, tensor: torch.Tensor, args: List[Any], kwargs: Any) -> Any:
    if name.startswith("addc") and len(args) == 3:  # the factor has a place in lists, a keyword with tensors
        *args, kwargs["value"] = args
    return getattr(tensor, name)(*args, **kwargs)


def _over_lists(name: str) -> Any:
    since = "2.1" if name == "copy_" else "2.0"
    return find(f"torch._foreach_{name}", since, _SLOWER, fallback=_one_by_one(name))


# Copies one by one round as well as all at once.
add_, mul_, div_, sqrt_, zero_ = map(_over_lists, ("add_", "mul_", "div_", "sqrt_", "zero_"))

ZERO_ALL = NAMES["torch._foreach_zero_"].last
"""Name of the function by which optimizers zero all gradients."""
addcmul_, addcdiv_, lerp_, copy_ = map(_over_lists, ("addcmul_", "addcdiv_", "lerp_", "copy_"))
add: Arithmetic = _over_lists("add")
mul: Arithmetic = _over_lists("mul")
div: Arithmetic = _over_lists("div")
addcmul: Arithmetic = _over_lists("addcmul")
sqrt: Arithmetic = _over_lists("sqrt")
norm: Arithmetic = _over_lists("norm")

# They exist since 2.0, for a CPU since 2.4.
_FUSED = [Name(f"torch._fused_{name}_", "2.4", _SLOWER, fallback=None) for name in ("sgd", "adam", "adamw")]
fused_sgd_, fused_adam_, fused_adamw_ = [each.get() for each in _FUSED]


def has_fused_updates() -> bool:
    """Return whether PyTorch has the fused updates, for a CPU."""
    version = tuple(map(int, torch.__version__.split(".")[:2]))
    return version >= (2, 4) and all(each.exists() for each in _FUSED)


flatten_tensors: Callable[[Any], torch.Tensor] = find(
    "torch._utils._flatten_dense_tensors",
    "2.0",
    "Gradients are copied twice to add them up over processes.",
    fallback=lambda tensors: torch.cat([each.reshape(-1) for each in tensors]),
)
"""Returns the elements of several tensors in one of one dimension."""
unflatten_tensors: Callable[[torch.Tensor, Any], Any] = find(
    "torch._utils._unflatten_dense_tensors",
    "2.0",
    "Gradients are copied twice to add them up over processes.",
    fallback=lambda flat, like: [
        part.view_as(each) for part, each in zip(flat.split([each.numel() for each in like]), like)
    ],
)
"""Returns parts of such a tensor with the shapes of the second argument's tensors."""
