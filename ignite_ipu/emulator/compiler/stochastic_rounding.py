"""Stochastic rounding: every float16 value that a program computes or converts is rounded at random, without bias.

On an IPU the rounding mode belongs to the arithmetic unit, so that it acts wherever a float16 result is written. Here
that is: casts to float16, results of operators in float16, the gradients that flow back through them and those that
accumulate in float16, updated weights and optimizer state. Operators with float16 operands compute in float32 and round
once. Constants that are computed at compile time, and values that are only moved, are as without it.

Not at random: where a float16 value has several users, autograd adds up its (rounded) gradients to the nearest.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, Sequence, Tuple

import torch
from torch import fx

from ignite_ipu.emulator.trace.operators.table import words
from ignite_ipu.emulator.values.structures import leaves, map_leaves

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
_EXPANSIONS = frozenset(("expand", "expand_as", "broadcast_to"))


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
    kernel: Callable[..., Any] = node.target  # type: ignore[assignment]
    expected = node.meta["dtypes"]
    halves = [expected, *(source.meta.get("dtype") for source in node.all_input_nodes)]
    if torch.float16 not in leaves(halves) or node.meta["operator"] in _EXACT or _is_view(node, is_written):
        return kernel
    compute = torch.Tensor.float if node.meta["operator"] == "half" else kernel

    @functools.wraps(kernel)
    def call(*args: Any, **kwargs: Any) -> Any:
        pairs: Dict[int, Tuple[torch.Tensor, torch.Tensor]] = {}

        def widened(value: Any) -> Any:
            if value is torch.float16:
                return torch.float32
            if not isinstance(value, torch.Tensor) or value.dtype is not torch.float16:
                return value
            if id(value) not in pairs:
                pairs[id(value)] = value, _Widen.apply(value)  # type: ignore[no-untyped-call]
            return pairs[id(value)][1]

        args, kwargs = map_leaves((args, kwargs), widened)
        result = compute(*args, **kwargs)
        if node.meta["writes"]:
            for half, wide in pairs.values():
                if not torch.equal(wide.detach(), half.detach().float()):
                    half.copy_(_Round.apply(wide))  # type: ignore[no-untyped-call]
        written = {id(wide): half for half, wide in pairs.values()}
        return _narrowed(result, expected, written)

    return call


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


def _narrowed(result: Any, expected: Any, written: Dict[int, torch.Tensor]) -> Any:
    if isinstance(result, (list, tuple)):
        return type(result)(_narrowed(*pair, written) for pair in zip(result, expected))
    if expected is not torch.float16 or result.dtype is torch.float16:
        return result
    if id(result) in written:
        return written[id(result)]  # an in-place operator returns its operand
    return _Round.apply(result)  # type: ignore[no-untyped-call]


def _is_view(node: fx.Node, is_written: Callable[[fx.Node], bool]) -> bool:
    """Tell whether a node's result is another view of an operand's memory, which must stay one."""
    if node.meta["writes"]:
        return False
    if node.meta["operator"] in _EXPANSIONS and not is_written(node):
        return False  # its gradient is a sum
    operands = {source.meta.get("memory") for source in node.all_input_nodes}
    return not operands.isdisjoint(node.meta["memories"])
