"""Stochastic rounding: every float16 value that a program computes or converts is rounded at random, without bias.

On an IPU the rounding mode belongs to the arithmetic unit, so that it acts on every float16 result. Here these are
casts to float16, results of operators in float16, gradients of these, gradients that accumulate in float16, updated
weights and optimizer state. Constants that are computed at compile time, and values that are only moved, are as without
it.

Not at random: where a float16 value has several users, autograd adds up its (rounded) gradients to the nearest.
"""

from __future__ import annotations

from typing import Any, Callable, Sequence

import torch
from torch import fx

from ignite_ipu.emulator.trace import half_precision
from ignite_ipu.operators.words import words

# The numbers in their arguments become float16 on the host; everything else in them is moved or drawn.
_EXACT = frozenset(
    words(
        "empty empty_like empty_strided new_empty fill_ zero_ zeros zeros_like new_zeros ones ones_like new_ones "
        "full full_like new_full new new_tensor tensor arange linspace logspace range eye where masked_fill "
        "masked_fill_ index_fill index_fill_ pad constant_pad_nd clamp clamp_ clamp_min clamp_min_ clamp_max "
        "clamp_max_ rand randn rand_like randn_like randint randint_like randperm normal normal_ uniform_ "
        "bernoulli bernoulli_ exponential_ random_ for_loop cond CPU fps nearest"
    )
)


def round_stochastically(values: torch.Tensor) -> torch.Tensor:
    """Return float16 values, each one of the two neighbours of a float32 value, the nearer one more often.

    The chance of a neighbour is linear in the distance to the other, so that the expected result is the value itself.
    Values beyond float16's range become infinite.
    """
    nearest = values.to(torch.float16)
    rounded = nearest.to(torch.float32)
    # The neighbour on the other side of the value; stepping the bit pattern by one steps to the next half.
    away = torch.where(values > rounded, 1, -1) * torch.where(rounded < 0, -1, 1)
    bits = nearest.view(torch.int16).to(torch.int32)
    zero = rounded == 0
    stepped = torch.where(zero, torch.where(values > 0, 1, 1 - 2**15), bits + away).to(torch.int16)
    other = stepped.view(torch.float16)
    gap = (other.to(torch.float32) - rounded).abs()
    chance = torch.where(gap > 0, (values - rounded).abs() / gap, torch.zeros_like(gap))
    draw = torch.rand(values.shape)
    exact = (rounded == values) | ~torch.isfinite(rounded)
    return torch.where(exact | (draw >= chance), nearest, other)


def store_stochastically(to: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Round float32 values at random into float16 tensors, drawing from the stream that is current: the device's."""
    for half, value in zip(to, values):
        half.copy_(round_stochastically(value))


def rounded(node: fx.Node, is_written: Callable[[fx.Node], bool]) -> Callable[..., Any]:
    """Return the kernel of a recorded operator, with float16 results and gradients rounded stochastically."""
    return half_precision.at_boundary(node, is_written, _EXACT, _STOCHASTIC)


class _Round(torch.autograd.Function):
    """From float32 to float16, at random; the gradient is exact."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return round_stochastically(value)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0].float()


class _Widen(torch.autograd.Function):
    """From float16 to float32, which is exact; the gradient is rounded at random."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.float()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return round_stochastically(gradients[0])


_STOCHASTIC = half_precision.Rounding(_Widen.apply, _Round.apply)
