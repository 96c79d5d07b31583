"""Shapes and types of an operator's results, found out by running it on tensors without values."""

from __future__ import annotations

import functools
import os
from types import TracebackType
from typing import Any, Callable, Dict, Mapping, Optional, Set, Tuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ignite_ipu.emulator.errors import Error, Refusal, backend_error
from ignite_ipu.emulator.trace import call_sites
from ignite_ipu.emulator.trace.call_sites import name_of
from ignite_ipu.emulator.trace.operators import support as operators
from ignite_ipu.emulator.trace.traced_tensor import needs_value
from ignite_ipu.emulator.values.nested import map_leaves

_TORCH = os.path.dirname(torch.__file__) + os.sep
# Where PyTorch keeps what stands for its kernels where tensors have no values.
_STAND_INS = tuple(_TORCH + name for name in ("_meta_registrations.py", "_decomp", "_refs", "_prims", "_subclasses"))
_NEEDS_VALUE = ("data-dependent", "item()", "Meta tensor")
_READS_VALUE = "aten::_local_scalar_dense"  # how PyTorch 2.0 says so
# What follows is about registering operators; PyTorch 2.0 lists all kernels there are.
_ADVICE = (" You may have run into this message", " This could be because the operator doesn't exist")
_DATA_DEPENDENT = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)

_NESTED = "Nested tensors do not compile: make the layer with nn.TransformerEncoder(..., enable_nested_tensor=False)."
_GROUPED = "Multiply the groups with torch.bmm (experts_implementation='batched_mm' for models of transformers)."
_REMEDIES = {
    "_nested_tensor_from_mask": _NESTED,
    "_nested_tensor_from_mask_left_aligned": _NESTED,
    "_grouped_mm": _GROUPED,
    "grouped_mm": _GROUPED,
}


def infer(kernel: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any], kinds: Set[str]) -> Any:
    """Return what `kernel` returns for these meta tensors, which are meta tensors again.

    Args:
        kinds: Gets what of the operator does not compile.

    Raises:
        Error: The operator needs values, or PyTorch cannot tell what it returns without.
        Exception: What is wrong with the arguments, as on the host.
    """
    try:
        with operators.observed(name_of(kernel), kernel, kinds):
            return kernel(*args, **kwargs)
    except Error:
        raise
    except NotImplementedError as error:
        if _READS_VALUE in str(error):
            raise needs_value(name_of(kernel)) from error
        return _inferred_on_host(kernel, args, kwargs, error)
    except Exception as error:
        text = str(error)
        if isinstance(error, RuntimeError) and "meta" in text.lower() and any(part in text for part in _NEEDS_VALUE):
            raise needs_value(name_of(kernel)) from error
        # What a signal handler raises, as for a loader's worker that died, only passes through here.
        if _is_of_a_stand_in(error.__traceback__) and not _works(kernel, args, kwargs):
            # If it does not take tensors of zeros like these either, the mistake is the model's.
            on_host = map_leaves((args, kwargs), _on_host)
            if _works(kernel, *on_host):
                raise _failed(kernel, error) from error
        raise


def _inferred_on_host(
    kernel: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any], cause: NotImplementedError
) -> Any:
    try:
        with torch.random.fork_rng(devices=[]), _OnHost():  # type: ignore[no-untyped-call]
            return kernel(*args, **kwargs)
    except NotImplementedError:
        raise _failed(kernel, cause) from cause


class _OnHost(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Asks the CPU's kernels, of zeros, where PyTorch has none for tensors without values: an older one lacks some."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Optional[Mapping[str, Any]] = None
    ) -> Any:
        given: Dict[str, Any] = dict(kwargs or {})
        try:
            return func(*args, **given)
        except NotImplementedError:
            if not operators.support(func.overloadpacket.__name__).works or set(_DATA_DEPENDENT) & set(func.tags):
                raise
            metas: Dict[int, Any] = {}

            def sent(value: Any) -> Any:
                host = _on_host(value)
                metas[id(host)] = value
                return host

            def received(value: Any) -> Any:
                if not isinstance(value, torch.Tensor):
                    return value
                return metas[id(value)] if id(value) in metas else value.to("meta")

            host_args, host_kwargs = map_leaves((args, given), sent)
            return map_leaves(func(*host_args, **host_kwargs), received)


def _failed(kernel: Callable[..., Any], error: Exception) -> Error:
    name = name_of(kernel)
    reason = str(error) or type(error).__name__
    for advice in _ADVICE:
        reason = reason.split(advice)[0]
    reason = reason.rstrip(". \n")
    return backend_error(
        f"Type inference failed for {name}, called {call_sites.here()}: {reason}. "
        f"{_REMEDIES.get(name, operators.REMEDY)}"
    )


def _is_of_a_stand_in(traceback: Optional[TracebackType]) -> bool:
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename.startswith(_STAND_INS):
            return True
        traceback = traceback.tb_next
    return False


def _works(kernel: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> bool:
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            kernel(*args, **kwargs)
    except Exception:
        return False
    return True


def _on_host(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == "meta" else value
    if not isinstance(value, torch.Tensor):
        return value
    zeros = torch.zeros(value.untyped_storage().nbytes() // value.element_size(), dtype=value.dtype)
    return zeros.as_strided(tuple(value.shape), value.stride(), int(value.storage_offset()))


_Kernel = Callable[..., Any]


def fixed(name: str, kernel: _Kernel) -> _Kernel:
    """Return a kernel that computes what `kernel` does and knows its result's shape before it runs."""
    fix = _FIXED.get(name)
    if fix is None:
        return kernel

    @functools.wraps(kernel)
    def call(*args: Any, **kwargs: Any) -> Any:
        return fix(kernel, *args, **kwargs)

    return call


def _ctc_loss(kernel: _Kernel, *args: Any, **kwargs: Any) -> Any:
    log_probs = args[0] if args else kwargs["log_probs"]
    # Reduced: "none" does not compile.
    return log_probs.sum() if log_probs.is_meta else kernel(*args, **kwargs)


def _bincount(kernel: _Kernel, input: torch.Tensor, weights: Any = None, minlength: int = 0) -> torch.Tensor:
    if minlength < 1:
        raise _needs_length("bincount", "minlength")
    if input.is_meta:
        dtype = torch.int64 if weights is None else torch.float32
        return torch.empty(minlength, dtype=dtype, device=input.device)
    counts: torch.Tensor = kernel(input, weights, minlength)
    if len(counts) > minlength:
        raise backend_error(
            f"bincount: the value {len(counts) - 1} is beyond the result, whose length is minlength ({minlength})."
        )
    return counts


def _one_hot(kernel: _Kernel, tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    if num_classes < 0:
        raise _needs_length("one_hot", "num_classes")
    if tensor.is_meta and tensor.dtype is torch.int64:  # PyTorch 2.0 has no meta kernel
        return tensor.new_empty((*tensor.shape, num_classes))
    encoded: torch.Tensor = kernel(tensor, num_classes)
    return encoded


def _needs_length(name: str, argument: str) -> Error:
    return backend_error(
        f"{name}: dynamic output shape is not supported, and without {argument} the largest value decides. Pass "
        f"{argument}, above every value.",
        kind=Refusal.DYNAMIC_SHAPE,
    )


def _repeat_interleave(kernel: _Kernel, input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    repeats, dim = [*args, *[None] * 2][:2]
    repeats, dim = kwargs.get("repeats", repeats), kwargs.get("dim", dim)
    if input.is_meta and isinstance(repeats, int) and kwargs.get("output_size") is None:
        # PyTorch 2.0 asks for the length even where the repeats are a number.
        kwargs["output_size"] = repeats * (input.numel() if dim is None else input.size(dim))
    repeated: torch.Tensor = kernel(input, *args, **kwargs)
    return repeated


def _cov(kernel: _Kernel, input: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    if input.is_meta and not any(isinstance(value, torch.Tensor) for value in kwargs.values()):
        return input.new_empty((len(input), len(input)) if input.dim() > 1 else ())
    covariance: torch.Tensor = kernel(input, **kwargs)
    return covariance


_FIXED: Dict[str, _Kernel] = {
    "bincount": _bincount,
    "cov": _cov,
    "ctc_loss": _ctc_loss,
    "one_hot": _one_hot,
    "repeat_interleave": _repeat_interleave,
}
