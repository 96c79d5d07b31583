"""In-place operations, computed without writing into their first argument."""

from __future__ import annotations

from typing import Any, Callable, Dict, Tuple

import torch

from ignite_ipu.deferred.graph.structure import words

__all__ = ["OPERATORS", "OUT_OF_PLACE", "diagonal_masked"]

# What `x += y` and its kin call, beside methods of these names.
OPERATORS = words("__iadd__ __isub__ __imul__ __idiv__ __itruediv__ add_ sub_ mul_ div_")


def setitem(tensor: torch.Tensor, index: Any, value: Any) -> torch.Tensor:
    """Return a copy of the tensor in which `index` has another value."""
    copy = tensor.clone()
    copy[index] = value
    return copy


def fill(tensor: torch.Tensor, value: Any) -> torch.Tensor:
    """Return a copy of the tensor in which every element has one value."""
    return tensor.clone().fill_(value)


def zero(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of the tensor in which every element is zero."""
    return tensor.clone().zero_()


def copied(tensor: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """Return a tensor like the first with the values of another one."""
    return tensor.clone().copy_(src)


def diagonal_masked(tensor: torch.Tensor, fill_value: Any, wrap: bool = False) -> Tuple[Any, ...]:
    """Return the arguments of `masked_fill` that do what those of `fill_diagonal_` do, which PopTorch does not have."""
    return tensor, torch.zeros(tensor.shape, dtype=torch.bool).fill_diagonal_(True, wrap), fill_value


OUT_OF_PLACE: Dict[str, Callable[..., Any]] = {
    "__setitem__": setitem,
    "fill_diagonal_": torch.Tensor.masked_fill,
    "fill_": fill,
    "zero_": zero,
    "copy_": copied,
    "__iadd__": torch.Tensor.add,
    "__isub__": torch.Tensor.sub,
    "__imul__": torch.Tensor.mul,
    "__itruediv__": torch.Tensor.div,
    "__idiv__": torch.Tensor.div,
    **{
        f"{name}_": getattr(torch.Tensor, name)
        for name in words(
            "add sub mul div clamp abs neg exp log sqrt pow relu sigmoid tanh masked_fill "
            "clamp_min clamp_max round floor ceil sign square reciprocal rsqrt lerp addcmul tril triu "
            "scatter scatter_add index_fill index_add index_copy index_put"
        )
    },
}
