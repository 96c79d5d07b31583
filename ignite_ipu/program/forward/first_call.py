"""A first call that sets a model up: weights, buffers and attributes that forward sets once, from its first inputs.

The scale of an ActNorm is that of the first batch, and a codebook begins with the first vectors; an attribute or a
buffer records that this is done. A program runs Python code in the trace alone. So the host makes the first call before
anything is compiled, and programs begin with the values that it has set.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Protocol, Tuple

import torch
from torch import nn

from ignite_ipu.errors import ForwardError, listed
from ignite_ipu.program.forward.module_attributes import SCALARS, ModuleAttributes
from ignite_ipu.program.forward.randomness import draw_from, host_random_state
from ignite_ipu.program.forward.weight_writes import WeightWriteGuard, written_by
from ignite_ipu.program.guards.decisions import Decisions
from ignite_ipu.program.tensors.raw import is_lazy, named_tensors, plain, tensors_of
from ignite_ipu.program.tensors.trees import tensors_in
from ignite_ipu.program.user_code import current_line
from ignite_ipu.torch_names.dispatch import DispatchMode, is_mutable, is_random
from ignite_ipu.torch_names.modules import BUFFERS, PARAMETERS, NormWithStatistics, all_named_modules
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass, memory_of

_Values = Dict[str, List[torch.Tensor]]


class Operators(Protocol):
    """Context of a call that sees each of its operators.

    Attributes:
        around: Calls an operator and returns its result; None for a call as it is.
    """

    around: Optional[Callable[[Any, Tuple[Any, ...], Dict[str, Any]], Any]]


class SetOnce(NamedTuple):
    """Result of `set_once`: values that only the first call of a model sets.

    Attributes:
        values: Weights and buffers by name, with the values.
        counters: Names of the attributes with numbers that the second call has changed again, and of other values
            where later calls return other results.
    """

    values: Dict[str, torch.Tensor]
    counters: List[str]

    def put(self, model: nn.Module) -> None:
        """Give the model's tensors these values."""
        tensors = named_tensors(model)
        for name, value in self.values.items():
            plain(tensors[name]).copy_(value)


def set_once(
    model: nn.Module,
    call: Callable[[], Any],
    recorder: Optional[Operators] = None,
    decisions: Optional[Decisions] = None,
) -> SetOnce:
    """Call a model for the first time, and return the values that only this call sets.

    Tensors are as before afterwards, attributes and random numbers of the host as after one call.

    Args:
        model: The model.
        call: Calls it on the host, up to three times.
        recorder: The context in which it does so, if it has one that sees each operator.
        decisions: The values that the code decides by, of what is called beside the model, too, if looked up.

    Raises:
        ForwardError: Each call writes into weights, or the first one returns another result than later ones.
    """
    return _FirstCalls(model, call, recorder, decisions or Decisions(model)).set_once()


class _FirstCalls:
    def __init__(
        self,
        model: nn.Module,
        call: Callable[[], Any],
        recorder: Optional[Operators],
        decisions: Decisions,
    ) -> None:
        self._model, self._call, self._recorder, self._decisions = model, call, recorder, decisions
        modules = all_named_modules(model)
        with DisableTorchFunctionSubclass():
            self._tensors = {name: each for name, each in tensors_of(modules).items() if not is_lazy(each)}
            self._memory = {name: torch.Tensor.detach(each) for name, each in self._tensors.items()}
            self._places = {name: memory_of(each) for name, each in self._memory.items()}
            # Weights follow when one is written: a model may have many.
            buffers = tensors_of(modules, BUFFERS).keys() & self._memory.keys()
            self._before = {name: self._memory[name].clone() for name in buffers}
        self._draws = 0  # operators of the last call that draw random numbers
        # Each call writes them, and PyTorch does not count all of that.
        self._idle = {
            f"{path}.{name}" if path else name
            for path, module in modules
            if isinstance(module, NormWithStatistics)
            for name in ("running_mean", "running_var", "num_batches_tracked")
        }

    def set_once(self) -> SetOnce:
        """Return the result of the function of this name."""
        start, attributes = host_random_state(), ModuleAttributes(self._model)
        first, result = self._recorded()
        decisions = self._decisions.changed()
        if not (first or decisions) and attributes.are_unchanged:
            self._restore({})
            return SetOnce({}, [])
        drawn = self._draws
        after, attributes_after = host_random_state(), ModuleAttributes(self._model)
        changed = attributes.differing(attributes_after)
        flags = {path: each for path, each in changed.items() if _decides(each)}
        if not (first or flags or decisions):
            self._restore({})
            return SetOnce({}, [])
        # With the objects that the first call has made.
        later = self._decisions.again() if decisions else self._decisions
        second, _ = self._recorded()
        counted = [name for name in later.changed() if name in decisions] if decisions else []
        again = attributes_after.differing(ModuleAttributes(self._model))
        counters = [path for path in flags if path in again and type(flags[path]) in SCALARS]
        counters = [path for path in counters if path.rpartition(".")[2] in later.words]
        once = flags.keys() - again.keys()
        found = {
            name: values[len(values) - len(second.get(name, ())) - 1]
            for name, values in first.items()
            if len(values) > len(second.get(name, ()))
        }
        self._refuse_written_weights(second)
        if (found or once or decisions) and not counters:
            attributes.put_back(always=True, but={path.rpartition(".")[2] for path in changed.keys() - again.keys()})
            self._restore(found)
            draw_from(start)
            third, compared = self._recorded()
            # Other draws of the first call change all that follow.
            if self._draws in (0, drawn) and not _are_close(result, compared):
                self._restore({})
                if not counted:
                    raise ForwardError(
                        f"The first call of {type(self._model).__qualname__} at {current_line()} returns another "
                        "result than a later call with the values that it has set "
                        f"({listed(sorted({*found, *once, *decisions}))}). A compiled program has one forward for all "
                        "calls. Let forward compute the same after it has set them, or set them before the model is "
                        "trained."
                    )
                counters = counted
            if third.keys() & found.keys() != second.keys() & found.keys():  # by turns, as each second call
                found = {}
        attributes_after.put_back(always=True)
        self._restore({})
        draw_from(after)
        return SetOnce(found, counters)

    def _recorded(self) -> Tuple[_Values, List[torch.Tensor]]:
        """Return the values that a call writes, for each tensor in their order, and the tensors that it returns."""
        writes = _Writes(self._memory, self._places, self._before)
        if self._recorder is None:
            with _Noted(writes):
                result = self._call()
        else:  # a second mode would take each operator as long again
            self._recorder.around = writes.call
            try:
                result = self._call()
            finally:
                self._recorder.around = None
        self._draws = writes.draws
        values = {name: each for name, each in writes.values.items() if name not in self._idle}
        with torch.no_grad(), DisableTorchFunctionSubclass():
            for name, tensor in self._tensors.items():
                if memory_of(tensor) != self._places[name]:  # `weight.data = ...`
                    memory = self._memory[name]
                    self._before.setdefault(name, memory.clone())
                    if tensor.shape == memory.shape:
                        values.setdefault(name, []).append(plain(tensor).clone())
                    tensor.data = memory
            return values, [plain(each).clone() for each in tensors_in(result)]

    def _restore(self, found: Mapping[str, torch.Tensor]) -> None:
        """Give all tensors their values before the calls, or the ones that were found."""
        with torch.no_grad(), DisableTorchFunctionSubclass():
            for name, value in {**self._before, **found}.items():
                if not torch.equal(self._memory[name], value):
                    self._memory[name].copy_(value)

    def _refuse_written_weights(self, later: _Values) -> None:
        if later.keys() & named_tensors(self._model, PARAMETERS).keys():
            try:
                with WeightWriteGuard(self._model):
                    self._call()
            finally:
                self._restore({})


class _Writes:
    """Records the values of some tensors after each operator that writes into their memory, which is at these places.

    `before` gets those from before the first write, of tensors that it has not got.
    """

    def __init__(
        self, tensors: Mapping[str, torch.Tensor], places: Mapping[str, int], before: Dict[str, torch.Tensor]
    ) -> None:
        self.values: _Values = {}
        self.draws = 0
        self._before = before
        self._tensors: Dict[int, List[Tuple[str, torch.Tensor]]] = {}
        for name, tensor in tensors.items():
            self._tensors.setdefault(places[name], []).append((name, tensor))

    def call(self, func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        """Return an operator's result."""
        self.draws += is_random(func)
        if not is_mutable(func):
            return func(*args, **kwargs)
        memories = {memory_of(each) for each in written_by(func, args, kwargs)}
        written = [pair for memory in memories for pair in self._tensors.get(memory, ())]
        for name, tensor in written:
            if name not in self._before:
                self._before[name] = tensor.clone()
        output = func(*args, **kwargs)
        for name, tensor in written:
            self.values.setdefault(name, []).append(tensor.clone())
        return output


class _Noted(DispatchMode):  # type: ignore[no-untyped-call]
    """Context whose operators are noted."""

    def __init__(self, writes: _Writes) -> None:
        super().__init__()
        self._writes = writes

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Optional[Dict[str, Any]] = None
    ) -> Any:
        return self._writes.call(func, args, kwargs or {})


def _decides(value: Any) -> bool:
    """Return whether code may decide by an attribute of this value, as by a flag."""
    return type(value) in SCALARS or (type(value) in (list, dict) and not tensors_in(value))


def _are_close(first: List[torch.Tensor], second: List[torch.Tensor]) -> bool:
    return len(first) == len(second) and all(
        one.shape == other.shape and torch.allclose(one.double(), other.double(), rtol=1e-4, atol=1e-6, equal_nan=True)
        for one, other in zip(first, second)
    )
