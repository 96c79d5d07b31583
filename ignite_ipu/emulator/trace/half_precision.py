"""Operators on float16 values: they compute in float32, and round once where a float16 value is written.

IPUs accumulate products and sums in float32, too. PyTorch's own kernels in float16 for a CPU differ between versions,
and PyTorch 2.0, which PopTorch 3.3 is built for, has few of them. By this rule a program computes the same with all.
Values that are only moved, or drawn at random, go through PyTorch's kernels, which every version has.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Collection, Dict, NamedTuple, Set, Tuple

import torch
from torch import fx

from ignite_ipu.emulator.values.structures import leaves, map_leaves
from ignite_ipu.operators.words import words
from ignite_ipu.torch_names.tensors import version_of

Kernel = Callable[..., Any]
_Convert = Callable[[torch.Tensor], torch.Tensor]

_EXPANSIONS = frozenset(("expand", "expand_as", "broadcast_to"))
_MOVED_OR_DRAWN = frozenset(
    words(
        "empty empty_like empty_strided new_empty fill_ zero_ zeros zeros_like new_zeros ones ones_like new_ones "
        "full full_like new_full new new_tensor tensor where masked_fill masked_fill_ index_fill index_fill_ clone "
        "copy_ contiguous cat concat stack __getitem__ __setitem__ index_select gather repeat flip roll narrow_copy "
        "rand randn rand_like randn_like randint randint_like normal normal_ uniform_ random_ for_loop cond fps nearest"
    )
)


class Rounding(NamedTuple):
    """Conversions at an operator's boundary, with their gradients: to float32, and back to float16."""

    widen: _Convert
    narrow: _Convert


# Their gradients are conversions to the nearest as well.
NEAREST = Rounding(torch.Tensor.float, torch.Tensor.half)


def rounded(node: fx.Node, is_written: Callable[[fx.Node], bool]) -> Kernel:
    """Return the kernel of a recorded operator, with float16 results rounded to the nearest."""
    return at_boundary(node, is_written, _MOVED_OR_DRAWN, NEAREST)


def at_boundary(
    node: fx.Node, is_written: Callable[[fx.Node], bool], exact: Collection[str], rounding: Rounding
) -> Kernel:
    """Return the kernel of a recorded operator, which computes in float32 and rounds its float16 results.

    Kernels without float16 values, views, those that run the user's code, and the operators `exact` stay as they are.
    """
    kernel: Kernel = node.target  # type: ignore[assignment]
    name, expected = node.meta["operator"], node.meta["dtypes"]
    halves = [expected, *(source.meta.get("dtype") for source in node.all_input_nodes)]
    if torch.float16 not in leaves(halves) or name in exact or _is_view(node, is_written):
        return kernel
    if getattr(kernel, "runs_every_time", False):
        return kernel
    compute = torch.Tensor.float if name == "half" else kernel
    writes = node.meta["writes"]
    written = [
        place
        for place, leaf in enumerate(leaves((node.args, node.kwargs)))
        if isinstance(leaf, fx.Node) and leaf.meta.get("memory") in writes
    ]

    @functools.wraps(kernel)
    def call(*args: Any, **kwargs: Any) -> Any:
        operands = list(leaves((args, kwargs))) if written else []
        wide_args, wide_kwargs, pairs = _widened(args, kwargs, rounding)
        result = compute(*wide_args, **wide_kwargs)
        for place in written:
            if id(operands[place]) in pairs:
                half, wide = pairs[id(operands[place])]
                half.copy_(rounding.narrow(wide))
        return _narrowed(result, expected, {id(wide): half for half, wide in pairs.values()}, rounding)

    return call


def inferred(kernel: Kernel) -> Kernel:
    """Return a kernel that runs `kernel` on meta tensors in float32 in the place of float16, for the types of results.

    It serves operators of which PyTorch has no float16 kernel to ask.
    """

    @functools.wraps(kernel)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = list(leaves((args, kwargs)))
        floats = {leaf.dtype for leaf in given if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()}
        stays_wide = floats != {torch.float16} or torch.float32 in given
        wide_args, wide_kwargs, pairs = _widened(args, kwargs, NEAREST)
        before = {key: version_of(wide) for key, (_, wide) in pairs.items()}
        result = kernel(*wide_args, **wide_kwargs)
        for key, (half, wide) in pairs.items():
            if version_of(wide) != before[key]:
                half.copy_(wide)
        own = {id(wide): half for half, wide in pairs.values()}

        def kind(leaf: Any) -> Any:
            is_wide = isinstance(leaf, torch.Tensor) and leaf.dtype is torch.float32
            return torch.float16 if is_wide and (id(leaf) in own or not stays_wide) else None

        return _narrowed(result, map_leaves(result, kind), own, NEAREST)

    return call


def _widened(
    args: Tuple[Any, ...], kwargs: Dict[str, Any], rounding: Rounding
) -> Tuple[Tuple[Any, ...], Dict[str, Any], Dict[int, Tuple[torch.Tensor, torch.Tensor]]]:
    """Return arguments with float32 in the place of float16, and the pairs of tensors by the id of the narrow one."""
    pairs: Dict[int, Tuple[torch.Tensor, torch.Tensor]] = {}

    def wide(value: Any) -> Any:
        if value is torch.float16:
            return torch.float32
        if not isinstance(value, torch.Tensor) or value.dtype is not torch.float16:
            return value
        if id(value) not in pairs:
            pairs[id(value)] = value, rounding.widen(value)
        return pairs[id(value)][1]

    args, kwargs = map_leaves((args, kwargs), wide)
    return args, kwargs, pairs


def _narrowed(result: Any, expected: Any, own: Dict[int, torch.Tensor], rounding: Rounding) -> Any:
    if isinstance(result, (list, tuple)):
        return type(result)(_narrowed(*pair, own, rounding) for pair in zip(result, expected))
    if expected is not torch.float16 or result.dtype is torch.float16:
        return result
    if id(result) in own:
        return own[id(result)]  # an in-place operator returns its operand
    return rounding.narrow(result)


def _is_view(node: fx.Node, is_written: Callable[[fx.Node], bool]) -> bool:
    """Return whether a node's result is another view of an operand's memory, which must stay one."""
    if node.meta["writes"]:
        return False
    if node.meta["operator"] in _EXPANSIONS and not is_written(node):
        return False  # its gradient is a sum
    operands: Set[Any] = {source.meta.get("memory") for source in node.all_input_nodes}
    return not operands.isdisjoint(node.meta["memories"])
