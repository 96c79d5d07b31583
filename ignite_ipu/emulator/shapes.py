"""Operators whose result's shape PyTorch cannot tell without values, and what the device makes of them."""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict

import torch

from ignite_ipu.emulator.errors import backend_error

_Kernel = Callable[..., Any]


def fixed(name: str, kernel: _Kernel) -> _Kernel:
    """Return a kernel that computes what `kernel` does and knows its result's shape before it runs."""
    make = _FIXED.get(name)
    return kernel if make is None else functools.wraps(kernel)(make(kernel))


def _ctc_loss(kernel: _Kernel) -> _Kernel:
    def ctc_loss(*args: Any, **kwargs: Any) -> Any:
        log_probs = args[0] if args else kwargs["log_probs"]
        # Reduced: "none" does not compile.
        return log_probs.sum() if log_probs.is_meta else kernel(*args, **kwargs)

    return ctc_loss


def _bincount(kernel: _Kernel) -> _Kernel:
    def bincount(input: torch.Tensor, weights: Any = None, minlength: int = 0) -> torch.Tensor:
        if minlength < 1:
            raise backend_error(
                "bincount: dynamic output shape is not supported, and without minlength the largest value decides. "
                "Pass minlength, above every value."
            )
        if input.is_meta:
            dtype = torch.int64 if weights is None else torch.float32
            return torch.empty(minlength, dtype=dtype, device=input.device)
        counts: torch.Tensor = kernel(input, weights, minlength)
        if len(counts) > minlength:
            raise backend_error(
                f"bincount: the value {len(counts) - 1} is beyond the result, whose length is minlength ({minlength})."
            )
        return counts

    return bincount


def _one_hot(kernel: _Kernel) -> _Kernel:
    def one_hot(tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
        if num_classes < 0:
            raise backend_error(
                "one_hot: dynamic output shape is not supported, and without num_classes the largest value decides. "
                "Pass num_classes, above every value."
            )
        if tensor.is_meta and tensor.dtype is torch.int64:  # PyTorch 2.0 has no meta kernel
            return tensor.new_empty((*tensor.shape, num_classes))
        encoded: torch.Tensor = kernel(tensor, num_classes)
        return encoded

    return one_hot


def _repeat_interleave(kernel: _Kernel) -> _Kernel:
    def repeat_interleave(input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        repeats, dim = [*args, *[None] * 2][:2]
        repeats, dim = kwargs.get("repeats", repeats), kwargs.get("dim", dim)
        if input.is_meta and isinstance(repeats, int) and kwargs.get("output_size") is None:
            # PyTorch 2.0 asks for the length even where the repeats are a number.
            kwargs["output_size"] = repeats * (input.numel() if dim is None else input.size(dim))
        repeated: torch.Tensor = kernel(input, *args, **kwargs)
        return repeated

    return repeat_interleave


def _cov(kernel: _Kernel) -> _Kernel:
    def cov(input: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        if input.is_meta and not any(isinstance(value, torch.Tensor) for value in kwargs.values()):
            return input.new_empty((len(input), len(input)) if input.dim() > 1 else ())
        covariance: torch.Tensor = kernel(input, **kwargs)
        return covariance

    return cov


_FIXED: Dict[str, Callable[[_Kernel], _Kernel]] = {
    "bincount": _bincount,
    "cov": _cov,
    "ctc_loss": _ctc_loss,
    "one_hot": _one_hot,
    "repeat_interleave": _repeat_interleave,
}
