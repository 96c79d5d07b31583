"""In-place operations, computed without writing into their first argument."""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from ignite_ipu.capabilities.gradients import MADE_TRAINABLE
from ignite_ipu.deferred.graph.operations import Value
from ignite_ipu.errors import CaptureError
from ignite_ipu.program.user_code import current_line
from ignite_ipu.torch_names.dispatch import NEURAL_FUNCTIONS, schemas_of


def _on_copy(name: str) -> Callable[..., torch.Tensor]:
    """Return a function that returns a copy of its first argument into which an in-place operator has written."""

    def written(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        copy = tensor.clone()
        getattr(copy, name)(*args, **kwargs)
        return copy

    written.__name__ = name.strip("_")
    return written


def diagonal_masked(tensor: torch.Tensor, fill_value: Any, wrap: bool = False) -> Tuple[Any, ...]:
    """Return arguments of `masked_fill` with the effect of `fill_diagonal_`, which PopTorch does not have."""
    return tensor, torch.zeros(tensor.shape, dtype=torch.bool).fill_diagonal_(True, wrap), fill_value


# Operators whose schemas do not separate their writes from their results, or that PyTorch computes by other functions.
_OWN: Dict[str, Callable[..., Any]] = {
    **{name: _on_copy(name) for name in ("__setitem__", "fill_", "zero_", "copy_")},
    "fill_diagonal_": torch.Tensor.masked_fill,
    "add_": torch.Tensor.add,
    "__iadd__": torch.Tensor.add,
    "__isub__": torch.Tensor.sub,
    "__imul__": torch.Tensor.mul,
    "__itruediv__": torch.Tensor.div,
    "__idiv__": torch.Tensor.div,
}


@functools.lru_cache(maxsize=None)
def out_of_place(name: str) -> Optional[Callable[..., Any]]:
    """Return the function that computes the values that an in-place operator writes; None if there is none.

    It is the one without the underscore, by PyTorch's schemas: the operator writes into its first argument alone, and
    the function takes the same arguments, with the same defaults, and returns no view.
    """
    if name in _OWN or not name.endswith("_"):
        return _OWN.get(name)
    plain = name[:-1]
    writing = schemas_of(f"aten::{name}")
    reading = [_arguments(each) for each in schemas_of(f"aten::{plain}") if _is_new(each)]
    if not writing or not all(_written(each) == [0] and _arguments(each) in reading for each in writing):
        return None
    found = [getattr(owner, plain, None) for owner in (torch.Tensor, torch, NEURAL_FUNCTIONS)]
    return next((each for each in found if isinstance(each, _BUILT_IN)), None)


def recorded_as(name: str, target: torch.Tensor, value: Optional[Value]) -> Callable[..., Any]:
    """Return the function that is recorded for one that writes into a tensor; refuse those for which there is none.

    The tensor stands for `value`, a tensor of the host for None.
    """
    plain, line = out_of_place(name), current_line()
    if name == "requires_grad_":
        detail = f"its shape is {tuple(target.shape)}"
        raise CaptureError(f"{line}: {MADE_TRAINABLE.refusal(name, detail)}")
    if plain is None and value is not None:
        raise CaptureError(
            f"{name} at {line} writes into a tensor that the step computes, in a way that recording does not follow. "
            "Compute a new tensor (x = x ** y for x **= y, torch.logical_and(x, y) for x.logical_and_(y), "
            "torch.randn_like(x) for x.normal_()), or write into it after optimizer.step()."
        )
    if plain is None or not isinstance(target, torch.Tensor):
        raise CaptureError(
            f"{name} at {line} writes values that do not exist yet into a "
            "tensor. Compute a new tensor (total = total + loss.detach(), torch.where, torch.cat, x.scatter() without "
            "the underscore), or do it after optimizer.step()."
        )
    if value is not None and value.shape.requires_grad and not torch.is_grad_enabled():
        raise CaptureError(
            f"{name} at {line} changes a tensor of shape {tuple(target.shape)} in place without gradients, and the "
            "loss may be computed from it: PyTorch changes the value alone, and gradients flow as if nothing had "
            "been done. Write one of these: x = x + (x.clamp(...) - x).detach() for that; x = x.clamp(...) outside of "
            "torch.no_grad() for a gradient through it; or x = x.detach().clone() first for none."
        )
    return plain


_BUILT_IN = (type(torch.Tensor.add), type(torch.relu))  # others are defined in Python, such as Tensor.resize


def _written(schema: Any) -> List[int]:
    infos = [argument.alias_info for argument in schema.arguments]
    return [position for position, info in enumerate(infos) if info is not None and info.is_write]


def _is_new(schema: Any) -> bool:
    return all(result.alias_info is None for result in schema.returns)


def _arguments(schema: Any) -> List[Tuple[Any, ...]]:
    return [(each.name, str(each.type), each.has_default_value(), each.default_value) for each in schema.arguments]
