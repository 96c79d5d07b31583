"""Shapes and types of an operator's results, found out by running it on tensors without values."""

from __future__ import annotations

import contextlib
import functools
import traceback
import types
from typing import Any, Callable, Dict, FrozenSet, List, Mapping, Optional, Sequence, Set, Tuple

import torch

from ignite_ipu.emulator.errors import Error, Refusal, backend_error
from ignite_ipu.emulator.trace import call_sites, half_precision, operators
from ignite_ipu.emulator.trace.active import memory_of
from ignite_ipu.emulator.trace.call_sites import name_of
from ignite_ipu.emulator.trace.refusals import needs_value
from ignite_ipu.emulator.values.structures import leaves, map_leaves
from ignite_ipu.torch_names.dispatch import GROUPED_PRODUCT, LOCAL_SCALAR, NESTED_FROM_MASK, DispatchMode
from ignite_ipu.torch_names.files import SHAPE_INFERENCE
from ignite_ipu.torch_names.tensors import version_of

_Kernel = Callable[..., Any]

_NEEDS_VALUE = ("data-dependent", "item()", "Meta tensor")
_NO_HALF_KERNEL = "not implemented for 'Half'"
_READS_VALUE = f"aten::{LOCAL_SCALAR}"  # PyTorch 2.0's wording
# The text after these is about registering operators; PyTorch 2.0 lists all kernels there are.
_ADVICE = (" You may have run into this message", " This could be because the operator doesn't exist")
_DATA_DEPENDENT = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)

_BUILT_IN = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
_PLAIN = (
    *(bool, int, float, str, type(None), type(...)),
    *(torch.dtype, torch.device, torch.memory_format, torch.layout),
)

_MOST_KNOWN = 4096

_NESTED = "Nested tensors do not compile: make the layer with nn.TransformerEncoder(..., enable_nested_tensor=False)."
_GROUPED = "Multiply the groups with torch.bmm (experts_implementation='batched_mm' for models of transformers)."
_REMEDIES = {
    **{name: _NESTED for name in NESTED_FROM_MASK},
    GROUPED_PRODUCT: _GROUPED,
    "grouped_mm": _GROUPED,
}


class Inferences:
    """Inferences of traces, each made once: layers repeat, and so do programs, with operators on the same shapes."""

    def __init__(self) -> None:
        self._known: Dict[Any, Tuple[Callable[[], torch.Tensor], FrozenSet[str]]] = {}

    def infer(self, kernel: _Kernel, args: Tuple[Any, ...], kwargs: Dict[str, Any], kinds: Set[str]) -> Any:
        """Return the result of `infer`; for a tensor that PyTorch's own operator makes, a similar one."""
        tensors: List[torch.Tensor] = []
        key: Any = None
        with contextlib.suppress(_HasNoKey):
            of_torch = isinstance(kernel, types.FunctionType) and kernel.__module__.split(".")[0] == "torch"
            if not of_torch and not isinstance(kernel, _BUILT_IN):
                raise _HasNoKey
            state = torch.is_grad_enabled(), torch.get_default_dtype()
            key = kernel, state, _key((args, tuple(kwargs.items())), tensors)
            if key in self._known:
                make, others = self._known[key]
                kinds |= others
                return make()
        before = [version_of(tensor) for tensor in tensors]
        result = infer(kernel, args, kwargs, kinds)
        if key is not None and before == [version_of(tensor) for tensor in tensors]:
            again = _maker(result, tensors)
            if again is not None:
                if len(self._known) >= _MOST_KNOWN:
                    self._known.clear()
                self._known[key] = again, frozenset(kinds)
        return result


INFERENCES = Inferences()
"""Those of all traces of the process."""


class _HasNoKey(Exception):
    """Arguments that may make a difference beyond shapes and types."""


def _key(value: Any, tensors: List[torch.Tensor]) -> Any:
    kind = type(value)
    if kind is torch.Tensor and value.layout is torch.strided and not value.dtype.is_complex:
        tensors.append(value)
        return tuple(value.shape), value.stride(), value.storage_offset(), value.dtype, value.requires_grad
    if kind in (tuple, list, torch.Size):
        return kind, tuple([_key(each, tensors) for each in value])
    if kind is slice:
        return kind, value.start, value.stop, value.step
    if kind not in _PLAIN:
        raise _HasNoKey
    return kind, value


def _maker(result: Any, tensors: Sequence[torch.Tensor]) -> Optional[Callable[[], torch.Tensor]]:
    """Return a maker of tensors that look like `result`, if it is a tensor with memory of its own."""
    if type(result) is not torch.Tensor or result.layout is not torch.strided or result.dtype.is_complex:
        return None
    if memory_of(result) in map(memory_of, tensors) or result.storage_offset():
        return None
    needs_grad, stride = result.requires_grad, result.stride()
    looks = functools.partial(
        torch.empty_strided, tuple(result.shape), stride, dtype=result.dtype, device=result.device
    )

    def make() -> torch.Tensor:
        # No leaf, which nothing could write to.
        return looks(requires_grad=True).clone() if needs_grad else looks()

    return make if make().stride() == stride else None


def infer(kernel: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any], kinds: Set[str]) -> Any:
    """Return the result of `kernel` for these meta tensors: meta tensors again.

    Args:
        kinds: Gets the parts of the operator that do not compile.

    Raises:
        Error: The operator needs values for the type of its result.
        Exception: The arguments are wrong, as on the host.
    """
    try:
        return _observed(kernel, args, kwargs, kinds)
    except Error:
        raise
    except NotImplementedError as error:
        if _READS_VALUE in str(error):
            raise needs_value(name_of(kernel)) from error
        try:
            with torch.random.fork_rng(devices=[]), _OnHost():
                return _observed(kernel, args, kwargs, set())
        except NotImplementedError:
            raise _failed(kernel, error) from error
    except Exception as error:
        text = str(error)
        if isinstance(error, RuntimeError) and "meta" in text.lower() and any(part in text for part in _NEEDS_VALUE):
            raise needs_value(name_of(kernel)) from error
        # An error of a signal handler, as for a loader's dead worker, only passes through here.
        files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
        if any(file.startswith(SHAPE_INFERENCE) for file in files) and not _works(kernel, args, kwargs):
            # If it does not take tensors of zeros like these either, the mistake is the model's.
            on_host = map_leaves((args, kwargs), _on_host)
            if _works(kernel, *on_host):
                raise _failed(kernel, error) from error
        raise


def _observed(kernel: _Kernel, args: Tuple[Any, ...], kwargs: Dict[str, Any], kinds: Set[str]) -> Any:
    with operators.observed(kernel, kinds):
        try:
            return kernel(*args, **kwargs)
        except RuntimeError as error:
            if _NO_HALF_KERNEL not in str(error):
                raise
            return half_precision.inferred(kernel)(*args, **kwargs)


class _OnHost(DispatchMode):  # type: ignore[no-untyped-call]
    """Asks the CPU's kernels, of zeros and ones, where PyTorch has none without values: older versions lack some."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Optional[Mapping[str, Any]] = None
    ) -> Any:
        given: Dict[str, Any] = dict(kwargs or {})
        try:
            return func(*args, **given)
        except NotImplementedError:
            if set(_DATA_DEPENDENT) & set(func.tags):
                raise
            metas: Dict[int, Any] = {}

            def sent(value: Any) -> Any:
                host = _on_host(value)
                if isinstance(host, torch.Tensor) and host.is_floating_point():
                    host.fill_(1.0)  # probabilities are not all zero
                metas[id(host)] = value
                return host

            def received(value: Any) -> Any:
                if not isinstance(value, torch.Tensor):
                    return value
                return metas[id(value)] if id(value) in metas else value.to("meta")

            host_args, host_kwargs = map_leaves((args, given), sent)
            result = func(*host_args, **host_kwargs)
            # A number or a truth is of these values alone, and a nested tensor is none of the IPU's.
            if any(getattr(leaf, "is_nested", True) for leaf in leaves(result)):
                raise
            return map_leaves(result, received)


def _failed(kernel: Callable[..., Any], error: Exception) -> Error:
    name, reason = name_of(kernel), str(error) or type(error).__name__
    for advice in _ADVICE:
        reason = reason.split(advice)[0]
    reason = reason.rstrip(". \n")
    return backend_error(
        f"Type inference failed for {name}, called {call_sites.here()}: {reason}. "
        f"{_REMEDIES.get(name, operators.REMEDY)}",
        kind=Refusal.UNSUPPORTED_OPERATOR if operators.is_refused(name) else None,
    )


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


def fixed(name: str, kernel: _Kernel) -> _Kernel:
    """Return a kernel that computes the same as `kernel`, and has its result's shape before it runs."""
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


def _one_hot(kernel: _Kernel, tensor: torch.Tensor, num_classes: int = -1) -> Any:
    if num_classes < 0:
        raise _needs_length("one_hot", "num_classes")
    if tensor.is_meta and tensor.dtype is torch.int64:  # PyTorch 2.0 has no meta kernel
        return tensor.new_empty((*tensor.shape, num_classes))
    return kernel(tensor, num_classes)


def _needs_length(name: str, argument: str) -> Error:
    return backend_error(
        f"{name}: dynamic output shape is not supported, and without {argument} the largest value decides. Pass "
        f"{argument}, above every value.",
        kind=Refusal.DYNAMIC_SHAPE,
    )


def _repeat_interleave(kernel: _Kernel, input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    given = {**dict(zip(("repeats", "dim"), args)), **kwargs}
    repeats, dim = given.get("repeats"), given.get("dim")
    if input.is_meta and isinstance(repeats, int) and kwargs.get("output_size") is None:
        # PyTorch 2.0 asks for the length even where the repeats are a number.
        kwargs["output_size"] = repeats * (input.numel() if dim is None else input.size(dim))
    return kernel(input, *args, **kwargs)


def _cov(kernel: _Kernel, input: torch.Tensor, **kwargs: Any) -> Any:
    if input.is_meta and not any(isinstance(value, torch.Tensor) for value in kwargs.values()):
        return input.new_empty((len(input), len(input)) if input.dim() > 1 else ())
    return kernel(input, **kwargs)


def _nansum(kernel: _Kernel, input: torch.Tensor, dim: Any = None, *args: Any, **kwargs: Any) -> Any:
    # Without a dimension to sum over PyTorch's stand-in keeps all of them, and its kernels none.
    return kernel(input, None if dim in ((), []) else dim, *args, **kwargs)


_FIXED: Dict[str, _Kernel] = {
    "bincount": _bincount,
    "corrcoef": _cov,
    "cov": _cov,
    "ctc_loss": _ctc_loss,
    "nansum": _nansum,
    "one_hot": _one_hot,
    "repeat_interleave": _repeat_interleave,
}
