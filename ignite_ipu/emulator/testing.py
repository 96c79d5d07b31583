"""Comparison of a model's results on the device and on the host."""

from __future__ import annotations

from typing import Any

import torch

# Half has three digits; values of other types may differ by rounding and summation order.
_RELATIVE = {torch.float16: 1e-2, torch.bfloat16: 1e-1}
_ABSOLUTE = {torch.float16: 1e-3, torch.bfloat16: 1e-2}


def allclose(ref: Any, other: Any) -> bool:
    """Return whether two structures hold the same values, floating-point ones up to rounding.

    Tensors must agree in shape; a type that the device narrows (int64, float64) equals its narrow one, and NaN equals
    NaN. Lists, tuples and dictionaries must agree in length and keys, whatever their classes. Other leaves must be
    equal.
    """
    if isinstance(ref, torch.Tensor) and isinstance(other, torch.Tensor):
        if ref.shape != other.shape or ref.is_floating_point() != other.is_floating_point():
            return False
        if not ref.is_floating_point():
            return bool((ref == other).all())
        relative = max(_RELATIVE.get(each.dtype, 1e-4) for each in (ref, other))
        absolute = max(_ABSOLUTE.get(each.dtype, 1e-5) for each in (ref, other))
        return torch.allclose(ref.double(), other.double(), rtol=relative, atol=absolute, equal_nan=True)
    if isinstance(ref, dict) and isinstance(other, dict):
        return ref.keys() == other.keys() and all(allclose(ref[key], other[key]) for key in ref)
    if isinstance(ref, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(ref) == len(other) and all(allclose(one, two) for one, two in zip(ref, other))
    if isinstance(ref, torch.Tensor) or isinstance(other, torch.Tensor):
        return False
    return bool(ref == other)
