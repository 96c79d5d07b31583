"""The signatures of recorded calls: found once for each kind of call, and then by looking at its arguments alone.

A loop makes the same calls in every iteration. The first time, a call on PyTorch's meta device finds the shapes of its
results. Afterwards its arguments lead to the signature, and the cost of recording does not grow with the model.
"""

from __future__ import annotations

import inspect
import operator
from typing import Any, Callable, Container, Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import torch
import torch.nn.functional as F

from ignite_ipu.capabilities.traced import NO_FUNCTION, OPERATOR, SHAPE
from ignite_ipu.deferred.graph.call_signatures import CallSignature
from ignite_ipu.deferred.graph.leaves import Input, Number, Shape
from ignite_ipu.deferred.graph.operations import CLOCK, name_of
from ignite_ipu.deferred.graph.owners import OWNED
from ignite_ipu.deferred.graph.scalar_indices import get_first_item, get_item
from ignite_ipu.deferred.graph.structure import Bounded, Structure, flatten, is_tensor, unflatten
from ignite_ipu.errors import CaptureError
from ignite_ipu.operators import table as operator_table
from ignite_ipu.program.tensors.described import described
from ignite_ipu.program.tensors.trees import PLAIN
from ignite_ipu.program.traced_places import refusal_at
from ignite_ipu.program.user_code import Line
from ignite_ipu.torch_names.dispatch import DispatchMode, is_mutable, is_random, tree_flatten, tree_map_only
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass, memory_of

_META = torch.device("meta")
# Tags of operators whose results or their shapes depend on values.
_BY_VALUES = frozenset([torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output])
# After this, errors of PyTorch 2.0 list its backends.
_ADVICE = " This could be because"
_ARITHMETIC = frozenset(["add", "sub", "mul", "div", "radd", "rsub", "rmul", "rdiv", "truediv", "rtruediv"])
_DIVISIONS = frozenset(["div", "rdiv", "truediv", "rtruediv"])
_NONE: FrozenSet[type] = frozenset()
_FLOATS: FrozenSet[type] = frozenset([float])
_NUMBERS: FrozenSet[type] = frozenset([float, int])
_WHOLE: FrozenSet[type] = frozenset(
    [int, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]
)
_TENSOR = torch.Tensor
_INFERRED = Bounded()


class _Plan:
    """Plan of a look at arguments of some types.

    Attributes:
        plain: Returns those that are compared by their values; None if there are none.
        leaves: The positions of the others in their order, and whether they are deferred tensors, or numbers; None if
            looking at the arguments is not enough.
    """

    __slots__ = ("leaves", "plain")

    def __init__(self, kinds: Sequence[type], numbers: Container[type], deferred: Container[type]) -> None:
        plain = [number for number, kind in enumerate(kinds) if kind in PLAIN and kind not in numbers]
        others = [number for number in range(len(kinds)) if number not in plain]
        known = all(kinds[each] in deferred or kinds[each] in numbers or kinds[each] is _TENSOR for each in others)
        leaves = [(each, kinds[each] in deferred, kinds[each] in numbers) for each in others]
        self.leaves: Optional[List[Tuple[int, bool, bool]]] = leaves if known else None
        self.plain: Optional[Callable[[Sequence[Any]], Any]] = operator.itemgetter(*plain) if plain else None


class Signatures:
    """Signatures by the arguments of calls, and as `templates` by their structure and shapes."""

    def __init__(self, *deferred: type) -> None:
        self._deferred = deferred
        self._signatures = Bounded()
        self._plans = Bounded()
        self.templates = Bounded()

    def look_up(
        self, key: List[Any], values: Sequence[Any], leaves: List[Any], numbers: Container[type]
    ) -> Optional[CallSignature]:
        """Return the signature of a call; None for the first of its kind, and for one that needs more than this look.

        `key` distinguishes the call besides its arguments. The arguments add to it; it is empty afterwards if looking
        at them is not enough. Their leaves are appended to `leaves`, including numbers of these types.
        """
        kinds = (numbers, *map(type, values))
        plan: Optional[_Plan] = self._plans.get(kinds)
        if plan is None:
            plan = self._plans[kinds] = _Plan(list(map(type, values)), numbers, self._deferred)
        if plan.leaves is None:
            key.clear()
            return None
        key.append(plan)
        if plan.plain is not None:
            key.append(plan.plain(values))
        for position, is_deferred, is_number in plan.leaves:
            value = values[position]
            if is_deferred:
                own = value.value
                tensor = own.tensor
                if tensor is None:
                    if own.operation.number <= CLOCK.settled:
                        break
                    key.append(own.shape)
                    leaves.append(own)
                    continue
                if own.shape.requires_grad:  # an update may have run that it was a part of
                    break
            elif is_number:
                leaves.append(Number(value))
                continue
            else:
                tensor = value
            if tensor.requires_grad or id(tensor) in OWNED or not tensor.is_cpu or tensor.__dict__:
                break
            try:
                key.append((tensor.shape, tensor.stride(), tensor.dtype))
            except RuntimeError:  # in a layout without strides
                break
            leaves.append(Input(tensor))
        else:
            found: Optional[CallSignature] = self._signatures.get(tuple(key))
            return found
        key.clear()
        return None

    def learn(self, key: List[Any], values: Sequence[Any], numbers: Container[type], signature: CallSignature) -> None:
        """Remember the signature of a call that was recorded the long way; else as `look_up`."""
        self.look_up(key, values, [], numbers)
        if key:
            self._signatures[tuple(key)] = signature


def inferred_signature(
    function: Callable[..., Any], structure: Structure, leaves: Sequence[Any], grad: bool, line: Line
) -> CallSignature:
    """Return the signature of a call, found by making it on the meta device the first time.

    A `CaptureError` where the shape of a result depends on values, or the device could not compute the call.
    """
    shapes = tuple([leaf.shape.key if not isinstance(leaf, Number) else type(leaf.value) for leaf in leaves])
    key = (function, structure.key, grad, shapes)
    signature: Optional[CallSignature] = _INFERRED.get(key)
    if signature is None:
        signature = _INFERRED[key] = _inferred(function, structure, leaves, grad, line)
    return signature


def changing_numbers(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> FrozenSet[type]:
    """Return the types of those numbers among the arguments of a function that may change from step to step.

    An int counts where PyTorch computes with it as with a float. With a tensor of integers it stays exact.
    """
    operation = name.strip("_")
    if operation not in _ARITHMETIC or "alpha" in kwargs:
        return _NONE
    if len(args) != 2 or _WHOLE.isdisjoint(map(type, args)):
        return _FLOATS
    divides = operation in _DIVISIONS and "rounding_mode" not in kwargs
    return _NUMBERS if divides or any(is_tensor(value) and value.is_floating_point() for value in args) else _FLOATS


def _inferred(
    function: Callable[..., Any], structure: Structure, leaves: Sequence[Any], grad: bool, line: Line
) -> CallSignature:
    metas = [leaf.value if isinstance(leaf, Number) else leaf.shape.meta() for leaf in leaves]
    storages = {memory_of(meta) for meta in metas if isinstance(meta, torch.Tensor)}
    args, kwargs = unflatten(structure, metas)
    kwargs = {name: _META if isinstance(value, torch.device) else value for name, value in kwargs.items()}
    try:
        host_kernels = _HostKernels()
        with torch.set_grad_enabled(grad), DisableTorchFunctionSubclass(), host_kernels:
            result = _SHAPES.get(function, function)(*args, **kwargs)
    except (NotImplementedError, RuntimeError) as error:
        # In some versions only the type of the error shows it.
        text = f"{type(error).__name__} {error}".lower()
        if not any(sign in text for sign in ("meta", "data-dependent", "dynamicoutputshape")):
            raise
        if operator_table.refused(name_of(function)) is not None:
            raise CaptureError(refusal_at(OPERATOR, line.place, NO_FUNCTION, f"{name_of(function)}()")) from error
        if host_kernels.has_no_shape:
            raise CaptureError(refusal_at(SHAPE, line.place, NO_FUNCTION, f"{name_of(function)}()")) from error
        raise CaptureError(
            f"{name_of(function)} at {line} needs values to know the shape of its result or to check its arguments, "
            "and the step has not run yet. Keep shapes fixed, write the formula out without the check, or compute it "
            "after optimizer.step(). "
            f"({type(error).__name__}: {str(error).split(_ADVICE)[0]})"
        ) from error
    tensors: List[torch.Tensor] = []
    result_structure = flatten(result, tensors)
    shapes = [Shape.of(tensor, tensor.requires_grad, memory_of(tensor) in storages) for tensor in tensors]
    signature = CallSignature(function, structure, grad, result_structure, shapes, draws=host_kernels.draws)
    of_shape = set(map(id, described(getattr(function, "__name__", ""), args, kwargs)))
    signature.described = frozenset([number for number, meta in enumerate(metas) if id(meta) in of_shape])
    return signature


def arguments_of(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the arguments of a function that Python defines by their names."""
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


def _ctc_loss(*args: Any, **kwargs: Any) -> torch.Tensor:
    """Return a tensor in the shape of a CTC loss, of which PyTorch has no meta kernel for lengths in tensors."""
    given = arguments_of(F.ctc_loss, args, kwargs)
    log_probs: torch.Tensor = given["log_probs"]
    return log_probs.sum((0, 2)) if given["reduction"] == "none" and log_probs.dim() == 3 else log_probs.sum()


def _cross_entropy(*args: Any, **kwargs: Any) -> torch.Tensor:
    """Return a tensor in the shape of a cross entropy, of which PyTorch 2.0 has no meta kernel for smoothed labels."""
    return F.cross_entropy(**{**arguments_of(F.cross_entropy, args, kwargs), "label_smoothing": 0.0})


def _one_hot(tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """Return a tensor in the shape of a one-hot encoding, of which PyTorch 2.0 has no meta kernel."""
    return F.one_hot(tensor) if num_classes < 0 else tensor.new_empty((*tensor.shape, num_classes))


def _multinomial(
    input: torch.Tensor, num_samples: int, replacement: bool = False, generator: Optional[torch.Generator] = None
) -> torch.Tensor:
    """Return a tensor in the shape of drawn indices, of which PyTorch 2.0 has no meta kernel."""
    return input.new_empty((*input.shape[:-1], num_samples), dtype=torch.int64).random_()


def _covariance(input: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    """Return a tensor in the shape of covariances, whose kernel compares a factor with values."""
    return input.new_empty((len(input), len(input)) if input.dim() > 1 else ()) + 0 * input.sum()


class _HostKernels(DispatchMode):  # type: ignore[no-untyped-call]
    """Asks the CPU's kernels, of zeros, where PyTorch has none for tensors without values; an older one lacks many.

    Attributes:
        has_no_shape: Whether an operator was called whose result has a shape that depends on values.
        draws: Whether an operator was called that can draw random numbers; `rrelu` counts in evaluation mode, too.
    """

    has_no_shape = draws = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Optional[Mapping[str, Any]] = None
    ) -> Any:
        self.has_no_shape |= torch.Tag.dynamic_output_shape in func.tags
        self.draws |= is_random(func)
        try:
            return func(*args, **(kwargs or {}))
        except NotImplementedError:
            if is_mutable(func) or _BY_VALUES.intersection(func.tags):
                raise
            given = tree_map_only(torch.Tensor, _zeros, (args, kwargs or {}))
            result = func(*given[0], **given[1])
            if not all(isinstance(leaf, torch.Tensor) for leaf in tree_flatten(result)[0]):
                raise  # a number or a truth is of these values alone
            return tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), result)


def _zeros(meta: torch.Tensor) -> torch.Tensor:
    return torch.zeros(meta.shape, dtype=meta.dtype)


# Replacements for functions, whose results have the same shapes.
_SHAPES: Dict[Callable[..., Any], Callable[..., Any]] = {
    get_item: get_first_item,
    F.cross_entropy: _cross_entropy,
    F.ctc_loss: _ctc_loss,
    F.one_hot: _one_hot,
    torch.multinomial: _multinomial,
    torch.Tensor.multinomial: _multinomial,
    **dict.fromkeys((torch.cov, torch.Tensor.cov, torch.corrcoef, torch.Tensor.corrcoef), _covariance),
}
