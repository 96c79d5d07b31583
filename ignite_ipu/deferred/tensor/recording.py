"""`Recorder`: records functions of deferred tensors as operations of the step, in place or not."""

from __future__ import annotations

import weakref
from typing import Any, Callable, Dict, FrozenSet, List, Optional, Sequence, Tuple

import numpy as np
import torch

from ignite_ipu.deferred.graph.leaves import weights_among
from ignite_ipu.deferred.graph.operations import USES, Operation, Value, name_of
from ignite_ipu.deferred.graph.owners import Held, captured_at, is_read_by_code, parameter_of
from ignite_ipu.deferred.graph.signatures import Signatures, changing_numbers, inferred_signature
from ignite_ipu.deferred.graph.state import note_statistics
from ignite_ipu.deferred.graph.step_graph import ancestors, sources_of
from ignite_ipu.deferred.graph.structure import flatten, is_tensor_or_array, leaves_in
from ignite_ipu.deferred.graph.uses import keep_weights
from ignite_ipu.deferred.tensor.deferred_values import Deferred, all_values, as_leaf, awaited_values, resolved
from ignite_ipu.deferred.tensor.functions import OPERATORS, written
from ignite_ipu.deferred.tensor.in_place import diagonal_masked, recorded_as
from ignite_ipu.deferred.tensor.indices import (
    ARRAYS,
    INDEXED,
    by_scalars,
    fills_selection,
    with_known_indices,
    without_empty,
    writes_nothing,
)
from ignite_ipu.deferred.tensor.inputs import NORMALISATIONS, is_weight, refuse_statistics
from ignite_ipu.deferred.tensor.reads import is_of_evaluations, read
from ignite_ipu.deferred.tensor.views import is_own_view, written_values
from ignite_ipu.deferred.tensor.without_graph import without_graph
from ignite_ipu.deferred.tensor.written_tensors import answered, refuse_shared, shares_memory, write_back
from ignite_ipu.errors import CaptureError
from ignite_ipu.program.user_code import current_line
from ignite_ipu.torch_names.tensors import base_of, memory_of

_STATISTICS = ("running_mean", "running_var")


class Recorder:
    """Records functions of deferred tensors.

    Args:
        results: Returns the results of an operation as the user gets them.
        kinds: The classes of deferred tensors.

    Attributes:
        signatures: The signatures of recorded calls.
        numbers: Functions that were recorded before, and types of numbers among their arguments that may change.
    """

    def __init__(self, results: Callable[[Operation], Any], *kinds: type) -> None:
        self._results = results
        self.signatures = Signatures(*kinds)
        self.numbers: Dict[Callable[..., Any], FrozenSet[type]] = {}

    def record(
        self, func: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any], in_place: bool = False
    ) -> Any:
        """Return the deferred result of a function, or a tensor of the host if it is computed there.

        Raises:
            CaptureError: The function cannot be recorded.
        """
        apart: Optional[str] = None
        try:
            found = self.recorded(func, args, kwargs)
        except CaptureError as error:
            values = all_values((args, kwargs))
            if not all(_is_of_weights(value) or is_of_evaluations(value) for value in values):
                raise
            if needs_gradients([value for value in values if not value.operation.of_weights]):
                if in_place:
                    raise
                apart = str(error)  # gradients would flow through values of models, of which the host has no graph
            found = NotImplemented
        if found is not NotImplemented:
            return found
        for leaf in leaves_in((args, kwargs), is_tensor_or_array):
            owner = parameter_of(leaf)
            if owner is not None:
                owner[0].loop.reads.show_weights(())
        result = func(*resolved(args), **resolved(kwargs))
        _keep_for_readers(result, all_values((args, kwargs)))
        if apart is None:
            return result
        place = f"{name_of(func)} at {current_line()}"
        reason = f"A backward pass reached a result of {place}, which the host has computed."
        return without_graph(result, f"{reason} {apart}")

    def recorded(self, func: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        """Return the recorded result of a function; `NotImplemented` if the host computes it."""
        name, asked = getattr(func, "__name__", ""), func
        target = written(name, args, kwargs)
        if target is not None:
            return self._record_in_place(func, name, target, args, kwargs)
        args, kwargs = without_empty(name, args, kwargs)
        if "device" in kwargs:
            kwargs = {**kwargs, "device": None}
        leaves: List[Any] = []
        numbers = changing_numbers(name, args, kwargs)
        if numbers:
            args = tuple([value.item() if isinstance(value, np.number) else value for value in args])

        others = ARRAYS if name in INDEXED else numbers

        def is_leaf(value: Any) -> bool:
            return isinstance(value, torch.Tensor) or type(value) in others

        structure = flatten((args, kwargs), leaves, is_leaf)
        if others is ARRAYS and len(leaves) > 1:
            args, leaves = with_known_indices(name, args, _on_host, _masked_by(name, args)), []
            func = by_scalars(name, func, args)
            structure = flatten((args, kwargs), leaves, is_leaf)
        line = current_line()
        values = [leaf.value for leaf in leaves if isinstance(leaf, Deferred)]
        if all(value.available for value in values):
            live = any(value.live or (value.shape.requires_grad and not value.known) for value in values)
            if not (torch.is_grad_enabled() and (live or any(map(is_weight, leaves)))):
                return NotImplemented
            shapes = inferred_signature(func, structure, [as_leaf(leaf, line) for leaf in leaves], True, line).shapes
            if not any(shape.requires_grad for shape in shapes):
                return NotImplemented
        writes = name in NORMALISATIONS and refuse_statistics(func, name, args, kwargs, line)
        leaves = [as_leaf(leaf, line) for leaf in leaves]
        grad = torch.is_grad_enabled()
        signature = inferred_signature(func, structure, leaves, grad, line)
        if writes:
            signature.writes = _STATISTICS
        if signature.draws and not any(shape.requires_grad for shape in signature.shapes):
            if all(is_of_evaluations(value) and not _is_of_trained_weights(value) for value in values):
                # The host draws, as in PyTorch: an inference program computes the values, or they are constants.
                return NotImplemented
            return self._results(Operation(signature, None, leaves, line))
        start = [asked, grad, len(args), *kwargs] if kwargs else [asked, grad]
        given = (*args, *kwargs.values())
        known = self.numbers[asked] = self.numbers.get(asked, numbers) | numbers
        # Calls are looked up with all of these types. Without numbers of the others, both sets mean the same here.
        same = (known - numbers).isdisjoint(map(type, given))
        self.signatures.learn(start, given, known if same else numbers, signature)
        operation = Operation(signature, None, leaves, line)
        if writes:
            note_statistics(operation).loop.buffers.record(operation, new=True)
        return self._results(operation)

    def _record_in_place(
        self, func: Callable[..., Any], name: str, target: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]
    ) -> Any:
        """Record `x += y` as `x = x + y`, which is the same as long as nothing else shares the memory of x."""
        value = target.value if isinstance(target, Deferred) else None
        late = awaited_values((args, kwargs))
        if value is None and not needs_gradients(late):
            held = [(each, captured_at(each)) for each in leaves_in(target)]
            # Other tensors that code reads get theirs before the next call; the name of `k += v` needs them now. A list
            # of tensors, as of torch._foreach_add_, is written at once: no result is bound to a name.
            several = isinstance(target, (list, tuple)) and "out" not in kwargs
            several = several and not any(isinstance(each, Deferred) for each, _ in held)
            if several or any([loops or (name in OPERATORS and is_read_by_code(each)) for each, loops in held]):
                return write_at_once(func, held, args, kwargs)
        if all(each.available for each in late) and not needs_gradients(late):
            if value is not None and not value.known:
                value.take(read(value, name_of(func)))
            if not _is_awaited(target):
                if value is not None:
                    value.keep_for_readers()
                result = func(*resolved(args), **resolved(kwargs))
                return result if value is None or result is not value.tensor else target
        if writes_nothing(name, args, kwargs, _masked_by(name, args)) and not _leads_on(value, (args[1:], kwargs)):
            return None if name == "__setitem__" else target
        plain, line, ordinary = recorded_as(name, target, value), current_line(), value is None
        if ordinary and name not in OPERATORS and not needs_gradients(late) and all(map(_is_of_weights, late)):
            return NotImplemented
        if name == "__setitem__" and value is not None and is_own_view(args[2], value, args[1]):
            return None
        memory = target if ordinary else target.origin
        if memory is not None and needs_gradients(late):
            refuse_shared(memory, name)
        elif memory is not None and shares_memory(memory, name):
            # The others are to have the values at once, and there is no way to let them wait.
            if value is not None and not value.known:
                value.take(read(value, name_of(func)))
            return func(*resolved(args, name_of(func)), **resolved(kwargs, name_of(func)))
        if name == "fill_diagonal_":
            args, kwargs = diagonal_masked(*args, **kwargs), {}
        result = self.record(plain, args, kwargs, in_place=True)
        if not isinstance(result, Deferred):  # the host has computed it, with gradients of its own
            if not ordinary and not _is_awaited(target):
                target.value.take(result)
            return result
        if ordinary:
            # The name that `total += loss` binds gets the result, and the tensor it named before stands for it.
            result.origin = target
            write_back(result.value, target, result)
            return result
        if tuple(result.shape) != tuple(target.shape) or result.dtype != target.dtype:
            raise CaptureError(
                f"{name_of(func)} at {line} works in place on a tensor whose shape or type it would change. Write "
                "x = x + y instead of x += y, and copy = x.clone(); copy[...] = y instead of x[...] = y."
            )
        for tensor, now in written_values(target.value, result.value, line):
            stand_for(tensor, now)
        return target


def write_at_once(
    func: Callable[..., Any], held: Sequence[Tuple[torch.Tensor, Held]], args: Tuple[Any, ...], kwargs: Dict[str, Any]
) -> Any:
    """Write into tensors that calls of captured models read, weights or others: the next call has the values.

    `held` has these tensors, each with the weights and buffers that have its memory.
    """
    args, kwargs = resolved((args, kwargs), name_of(func))
    for target, weights in held:
        if USES:
            keep_weights(list(weights))
        # PyTorch counts a write into a view of a weight, and none through its `data`.
        is_counted = any(parameter_of(each) is not None for each in (target, base_of(target)) if each is not None)
        for loop, tensors in weights.items():
            loop.reads.before_write(tensors, is_counted)
    return func(*args, **kwargs)


def _keep_for_readers(result: Any, values: Sequence[Value]) -> None:
    """Keep values for their readers if an ordinary tensor shares their memory, through which code may write."""
    sources = [(value, value.tensor) for value in values if value.tensor is not None and value.consumers]
    if sources:
        shared = {memory_of(each) for each in leaves_in(result)}
        for value, tensor in sources:
            if memory_of(tensor) in shared:
                value.keep_for_readers()


def stand_for(tensor: Any, value: Value) -> None:
    """Let a tensor that the user holds stand for a new value from here on."""
    tensor.value.handle = lambda: None
    tensor.value = value
    value.handle = weakref.ref(tensor)
    if tensor.origin is not None:
        write_back(value, tensor.origin, tensor)


def needs_gradients(values: Sequence[Value]) -> bool:
    """Return whether gradients are enabled and flow to some of these values."""
    return torch.is_grad_enabled() and any(value.shape.requires_grad for value in values)


def _is_of_weights(value: Value) -> bool:
    return value.known or value.operation.of_weights


def _leads_on(value: Optional[Value], others: Any) -> bool:
    """Return whether gradients flow through other arguments of a write to weights to which they flow not without it.

    PyTorch makes them zero where nothing is written.
    """
    if not torch.is_grad_enabled():
        return False
    if any(map(is_weight, leaves_in(others))):
        return True
    before = set() if value is None else set(ancestors(value))
    after = [each for other in all_values(others) if other.shape.requires_grad for each in ancestors(other)]
    with_weights = [each for each in after if each.model is not None or any(weights_among(each.leaves))]
    return not before.issuperset(with_weights)


def _is_awaited(target: Any) -> bool:
    """Return whether something was recorded of a known value that comes from weights; a loss may not be from now on."""
    if not (isinstance(target, Deferred) and target.value.live):
        return False
    if any(not each.done for each in target.value.readers()):
        return True
    target.value.operation.problem = f"it was written in place at {current_line()}"
    return False


def _is_of_trained_weights(value: Value) -> bool:
    """Return whether a value is computed from weights alone, as a constant in the shape of an output is not."""
    return value.operation.of_weights and any(any(weights_among(each.leaves)) for each in sources_of(value))


def _masked_by(name: str, args: Tuple[Any, ...]) -> Callable[[torch.Tensor], Optional[torch.Tensor]]:
    """Return the function that gives the values of masks: the number that one selects decides on a shape, or does not.

    It does where elements are taken, or written one by one. A write of one value is where the mask holds.
    """
    selects = name == "__getitem__" or (name in ("setitem", "__setitem__") and fills_selection(args))
    return _mask_values if selects else _on_host


def _mask_values(tensor: torch.Tensor) -> Optional[torch.Tensor]:
    """Return the values of a mask, which are read if the device computes them; None if they are of its draws.

    The host's draws are others.
    """
    tensor = answered(tensor)
    if not isinstance(tensor, Deferred):
        return tensor
    drawn = any(each.signature.draws for each in sources_of(tensor.value) if not each.done)
    return None if drawn and not tensor.value.known else read(tensor.value, "a mask")


def _on_host(tensor: torch.Tensor) -> Optional[torch.Tensor]:
    """Return the value of a tensor that the host has or computes by itself, None for others."""
    tensor = answered(tensor)
    if parameter_of(tensor) is not None or (isinstance(tensor, Deferred) and not _is_of_weights(tensor.value)):
        return None
    return read(tensor.value, "an index") if isinstance(tensor, Deferred) else tensor
