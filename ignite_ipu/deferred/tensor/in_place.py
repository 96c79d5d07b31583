"""In-place operations, computed without writing into their first argument."""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from ignite_ipu.deferred.graph.structure import words

__all__ = ["OPERATORS", "diagonal_masked", "out_of_place"]

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


# Those whose writing PyTorch's schemas do not tell from what they compute, or that it computes by other functions.
_OWN: Dict[str, Callable[..., Any]] = {
    "__setitem__": setitem,
    "fill_diagonal_": torch.Tensor.masked_fill,
    "fill_": fill,
    "zero_": zero,
    "copy_": copied,
    "add_": torch.Tensor.add,
    "__iadd__": torch.Tensor.add,
    "__isub__": torch.Tensor.sub,
    "__imul__": torch.Tensor.mul,
    "__itruediv__": torch.Tensor.div,
    "__idiv__": torch.Tensor.div,
}


@functools.lru_cache(maxsize=None)
def out_of_place(name: str) -> Optional[Callable[..., Any]]:
    """Return the function that computes what an in-place operator writes; None where there is none.

    It is the one without the underscore, where PyTorch's schemas say that the operator writes into its first argument
    alone and that this function takes the same arguments, with the same defaults, and gives no view.
    """
    if name in _OWN or not name.endswith("_"):
        return _OWN.get(name)
    plain = name[:-1]
    writing = torch._C._jit_get_schemas_for_operator(f"aten::{name}")
    reading = [_arguments(each) for each in torch._C._jit_get_schemas_for_operator(f"aten::{plain}") if _is_new(each)]
    if not writing or not all(_written(each) == [0] and _arguments(each) in reading for each in writing):
        return None
    found = [getattr(owner, plain, None) for owner in (torch.Tensor, torch, torch._C._nn)]
    return next((each for each in found if isinstance(each, _BUILT_IN)), None)


_BUILT_IN = (type(torch.Tensor.add), type(torch.relu))  # what Python defines, as Tensor.resize, is another function


def _written(schema: Any) -> List[int]:
    infos = [argument.alias_info for argument in schema.arguments]
    return [position for position, info in enumerate(infos) if info is not None and info.is_write]


def _is_new(schema: Any) -> bool:
    return all(result.alias_info is None for result in schema.returns)


def _arguments(schema: Any) -> List[Tuple[Any, ...]]:
    return [(each.name, str(each.type), each.has_default_value(), each.default_value) for each in schema.arguments]
