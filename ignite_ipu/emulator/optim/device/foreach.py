"""Arithmetic over lists of tensors, all of a list in one call, with float16 storage done right.

Tensors stored in float16 take part in float32 arithmetic and are rounded once, when the result is stored.
"""

from __future__ import annotations

from typing import Callable, List, Sequence, Tuple, Union

import torch

from ignite_ipu.torch_names import lists

_LARGE = 1 << 12  # elements
_FUSES = lists.has_fused_updates()
Tensors = Union[List[torch.Tensor], Tuple[torch.Tensor, ...]]
Store = Callable[[Tensors, Tensors], None]
"""Stores float32 values (second) in tensors of a narrower type (first)."""


def narrow(tensors: Tensors) -> bool:
    """Return whether the tensors, all of one type, have fewer bits than float32."""
    return tensors[0].dtype in (torch.float16, torch.bfloat16)


def store_nearest(to: Tensors, values: Tensors) -> None:
    """Round values to the nearest that the stored type can hold."""
    lists.copy_(to, values)


def widened(tensors: Tensors) -> List[torch.Tensor]:
    """Return float32 copies of float16 tensors."""
    wide = [torch.zeros_like(tensor, dtype=torch.float32) for tensor in tensors]
    lists.add_(wide, tensors)
    return wide


def fusible(*lists: Tensors) -> bool:
    """Return whether PyTorch's fused updates take these lists: they go through memory of float32 element by element."""
    return _FUSES and all(
        [each.dtype is torch.float32 and each.is_contiguous() for tensors in lists for each in tensors]
    )


def decay(state: Tensors, keep: float, new: Tensors, gain: float, store: Store) -> Tensors:
    """Set `state` to `keep * state + gain * new`, and return it in float32."""
    if not narrow(state):
        lists.mul_(state, keep)
        lists.add_(state, new, alpha=gain)
        return state
    result = lists.mul(new, gain)
    lists.add_(result, state, alpha=keep)
    return _stored(state, result, store)


def average(state: Tensors, beta: float, new: Tensors, store: Store) -> Tensors:
    """Set `state` to `beta * state + (1 - beta) * new`, and return it in float32."""
    if narrow(state):
        return decay(state, beta, new, 1 - beta, store)
    lists.lerp_(state, new, 1 - beta)
    return state


def average_square(state: Tensors, beta: float, new: Tensors, store: Store) -> Tensors:
    """Set `state` to `beta * state + (1 - beta) * new^2`, and return it in float32."""
    if not narrow(state):
        lists.mul_(state, beta)
        lists.addcmul_(state, new, new, 1 - beta)
        return state
    result = lists.mul(new, new)
    lists.mul_(result, 1 - beta)
    lists.add_(result, state, alpha=beta)
    return _stored(state, result, store)


def move(weights: Tensors, direction: Tensors, amount: float, keep: float, store: Store) -> None:
    """Set `weights` to `keep * weights + amount * direction`; the direction is left as it is."""
    if amount == 0.0 and keep == 1.0 and _are_surely_finite(direction):
        return  # else it is zero times infinity
    if not narrow(weights):
        if keep != 1.0:
            lists.mul_(weights, keep)
        lists.add_(weights, direction, alpha=amount)
        return
    moved = lists.mul(direction, amount)
    lists.add_(moved, weights, alpha=keep)
    store(weights, moved)


def _are_surely_finite(tensors: Tensors) -> bool:
    """Return whether all elements are finite, where a look at them takes less time than arithmetic with them."""
    if sum([each.numel() for each in tensors]) < _LARGE * len(tensors):
        return False
    return bool(torch.stack([each.sum() for each in tensors]).sum().isfinite())


def move_by_ratio(weights: Tensors, over: Tensors, under: Tensors, amount: float, keep: float, store: Store) -> None:
    """Set `weights` to `keep * weights + amount * over / under`."""
    if not narrow(weights):
        if keep != 1.0:
            lists.mul_(weights, keep)
        lists.addcdiv_(weights, over, under, amount)
        return
    move(weights, lists.div(over, under), amount, keep, store)


def norms(tensors: Tensors, grouped: bool) -> List[torch.Tensor]:
    """Return the 2-norm of each tensor, or of each slice along its first dimension if `grouped`."""
    if narrow(tensors):
        tensors = widened(tensors)
    if not grouped:
        return list(lists.norm(tensors))
    return [
        torch.linalg.vector_norm(t, dim=tuple(range(1, t.dim())), keepdim=True) if t.dim() > 1 else t.abs()
        for t in tensors
    ]


def global_norm(lists: Sequence[Tuple[Tensors, float]]) -> torch.Tensor:
    """Return the 2-norm, a scalar, over all tensors of all lists, each list divided by its number."""
    each = [torch.stack(norms(tensors, grouped=False)) / float(divisor) for tensors, divisor in lists]
    norm: torch.Tensor = torch.linalg.vector_norm(torch.cat(each))
    return norm


def times(tensors: Tensors, factor: torch.Tensor) -> Tensors:
    """Return every tensor multiplied by one scalar on the device, whose value the host need not know."""
    return lists.mul(tensors, [factor] * len(tensors))


def _stored(state: Tensors, result: Tensors, store: Store) -> Tensors:
    # The device continues with the stored values.
    store(state, result)
    store_nearest(result, state)
    return result
