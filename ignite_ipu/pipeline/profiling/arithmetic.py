"""Operations in matrix products and convolutions, from the shapes that reach the operator."""

from __future__ import annotations

from math import prod
from typing import Any, Callable, Dict, Tuple

from torch import Tensor


def _product(left: Tensor, right: Tensor) -> float:
    return 2.0 * left.numel() * right.shape[-1]


def _convolution(args: Tuple[Any, ...], result: Tensor) -> float:
    images, weight = args[0], args[1]
    transposed = bool(args[6])
    # Weights are (out, in / groups, *kernel), or (in, out / groups, *kernel) when transposed.
    pixels = images if transposed else result
    return 2.0 * pixels.numel() * float(prod(weight.shape[1:]))


_PRODUCTS: Dict[str, Callable[[Tuple[Any, ...], Any], Tuple[float, Tuple[Tensor, ...]]]] = {
    "mm": lambda a, r: (_product(a[0], a[1]), (a[0], a[1])),
    "bmm": lambda a, r: (_product(a[0], a[1]), (a[0], a[1])),
    "addmm": lambda a, r: (_product(a[1], a[2]), (a[1], a[2])),
    "baddbmm": lambda a, r: (_product(a[1], a[2]), (a[1], a[2])),
    "addbmm": lambda a, r: (_product(a[1], a[2]), (a[1], a[2])),
    "mv": lambda a, r: (2.0 * a[0].numel(), (a[0], a[1])),
    "addmv": lambda a, r: (2.0 * a[1].numel(), (a[1], a[2])),
    "dot": lambda a, r: (2.0 * a[0].numel(), (a[0], a[1])),
    "convolution": lambda a, r: (_convolution(a, r), (a[0], a[1])),
}


def matmul_flops(operator: str, args: Tuple[Any, ...], result: Any) -> Tuple[float, float, Tuple[Tensor, ...]]:
    """Return forward and backward operations, two to a multiply-add, and the operands multiplied; none for others.

    The backward pass repeats a product once per operand that needs a gradient.

    Args:
        operator: Name of an ATen operator without namespace and overload, such as `addmm`.
        args: Its positional arguments.
        result: What it returned.
    """
    if operator not in _PRODUCTS:
        return 0.0, 0.0, ()
    forward, operands = _PRODUCTS[operator](args, result)
    return forward, forward * sum(t.requires_grad for t in operands), operands
