"""Arithmetic over lists of tensors, all of a list in one call, with float16 storage done right.

Tensors stored in float16 take part in float32 arithmetic and are rounded once, when the result is stored.
"""

from __future__ import annotations

from typing import Callable, List, Sequence, Tuple, Union

import torch

# For a CPU PyTorch has fused updates since 2.4.
_FUSES = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 4)
Tensors = Union[List[torch.Tensor], Tuple[torch.Tensor, ...]]
Store = Callable[[Tensors, Tensors], None]
"""Stores float32 values (second) in tensors of a narrower type (first)."""


def narrow(tensors: Tensors) -> bool:
    """Return whether the tensors, all of one type, have fewer bits than float32."""
    return tensors[0].dtype in (torch.float16, torch.bfloat16)


def store_nearest(to: Tensors, values: Tensors) -> None:
    """Round values to the nearest that the stored type can hold."""
    if hasattr(torch, "_foreach_copy_"):
        torch._foreach_copy_(to, values)
        return
    # torch 2.0 has no such copy: adding to zero promotes and rounds once as well.
    torch._foreach_zero_(to)
    torch._foreach_add_(to, values)


def widened(tensors: Tensors) -> List[torch.Tensor]:
    """Return float32 copies of float16 tensors."""
    wide = [torch.zeros_like(tensor, dtype=torch.float32) for tensor in tensors]
    torch._foreach_add_(wide, tensors)
    return wide


def fusible(*lists: Tensors) -> bool:
    """Return whether PyTorch's fused updates take these lists: they go through memory of float32 element by element."""
    return _FUSES and all(
        [each.dtype is torch.float32 and each.is_contiguous() for tensors in lists for each in tensors]
    )


def decay(state: Tensors, keep: float, new: Tensors, gain: float, store: Store) -> Tensors:
    """Set `state` to `keep * state + gain * new`, and return it in float32."""
    if not narrow(state):
        torch._foreach_mul_(state, keep)
        torch._foreach_add_(state, new, alpha=gain)
        return state
    result = torch._foreach_mul(new, gain)
    torch._foreach_add_(result, state, alpha=keep)
    return _stored(state, result, store)


def average(state: Tensors, beta: float, new: Tensors, store: Store) -> Tensors:
    """Set `state` to `beta * state + (1 - beta) * new`, and return it in float32."""
    if narrow(state):
        return decay(state, beta, new, 1 - beta, store)
    torch._foreach_lerp_(state, new, 1 - beta)
    return state


def average_square(state: Tensors, beta: float, new: Tensors, store: Store) -> Tensors:
    """Set `state` to `beta * state + (1 - beta) * new^2`, and return it in float32."""
    if not narrow(state):
        torch._foreach_mul_(state, beta)
        torch._foreach_addcmul_(state, new, new, 1 - beta)
        return state
    result = torch._foreach_mul(new, new)
    torch._foreach_mul_(result, 1 - beta)
    torch._foreach_add_(result, state, alpha=beta)
    return _stored(state, result, store)


def move(weights: Tensors, direction: Tensors, amount: float, keep: float, store: Store) -> None:
    """Set `weights` to `keep * weights + amount * direction`; the direction is left as it is."""
    if not narrow(weights):
        if keep != 1.0:
            torch._foreach_mul_(weights, keep)
        torch._foreach_add_(weights, direction, alpha=amount)
        return
    moved = torch._foreach_mul(direction, amount)
    torch._foreach_add_(moved, weights, alpha=keep)
    store(weights, moved)


def move_by_ratio(weights: Tensors, over: Tensors, under: Tensors, amount: float, keep: float, store: Store) -> None:
    """Set `weights` to `keep * weights + amount * over / under`."""
    if not narrow(weights):
        if keep != 1.0:
            torch._foreach_mul_(weights, keep)
        torch._foreach_addcdiv_(weights, over, under, amount)
        return
    move(weights, torch._foreach_div(over, under), amount, keep, store)


def norms(tensors: Tensors, grouped: bool) -> List[torch.Tensor]:
    """Return the 2-norm of each tensor, or of each slice along its first dimension if `grouped`."""
    if narrow(tensors):
        tensors = widened(tensors)
    if not grouped:
        return list(torch._foreach_norm(tensors))
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
    return torch._foreach_mul(tensors, [factor] * len(tensors))


def _stored(state: Tensors, result: Tuple[torch.Tensor, ...], store: Store) -> Tensors:
    # What the device goes on computing with is what it stored.
    store(state, result)
    store_nearest(result, state)
    return result
