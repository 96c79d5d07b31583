"""Second traces: the host's operators in another call of a model, compared with those of the compilation.

Every Python value that a forward reads, in any way, shows in the operators that it calls as soon as it matters.
"""

from __future__ import annotations

import operator
from hashlib import sha256
from itertools import chain
from typing import Any, Callable, Dict, Hashable, Iterable, List, Optional, Sequence, Set, Tuple

import torch

from ignite_ipu.errors import BatchError, CaptureError
from ignite_ipu.program.forward.randomness import GLOBAL, SEED, draws_put_back, moved, name_of, state_of
from ignite_ipu.program.forward.weight_writes import WeightWriteGuard, written_by
from ignite_ipu.program.guards.python_state import PythonState
from ignite_ipu.program.guards.values import AWAITED
from ignite_ipu.program.ignored_warnings import ignored_warnings
from ignite_ipu.program.tensors.described import LIKE
from ignite_ipu.program.tensors.raw import checksum_of, dtype_of, plain, shape_of
from ignite_ipu.program.tensors.trees import tensors_in
from ignite_ipu.program.user_code import Line, current_line
from ignite_ipu.torch_names.dispatch import DispatchMode, is_mutable, is_random, operator_name
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass, memory_of

__all__ = ["MOST_CALLS", "FirstCallRecorder", "Operation", "OperatorRecorder", "Retrace"]

MOST_CALLS = 256
"""Calls of a program after which its module is traced again."""

_MOST_TRACES = 3
Operation = Tuple[Any, Hashable, Hashable]
"""An operator, its arguments, and those with names."""
# The class of PyTorch's generators; a script may see another under its name.
_GENERATOR = type(torch.default_generator)
# In the place of a generator that an operator draws from, before its state.
_DRAWN = "a torch.Generator"
_PLACE = "_ignite_ipu_place"
# The number of the operator that inputs and weights are from.
_GIVEN = -1
# The mark of a tensor that no recorder has seen.
_NOWHERE: Tuple[Any, Tuple[int, int]] = (None, (_GIVEN, _GIVEN))
_MOST_SHOWN = 8
# Types of most arguments that are no tensors, whose values are compared as they are.
_COMPARABLE = frozenset([int, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format])
_INDEX = torch.ops.aten.index.Tensor


class OperatorRecorder(DispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operators that are called in its `with` block.

    Args:
        watched: The number of an operator whose line is wanted.

    Attributes:
        operations: The operators, each with its arguments.
        line: Where the user's code has the one that is watched.
        writes: Refuses those that write into weights, where they are to be refused.
        written: The memory that they have written into, also through `tensor.data`, which PyTorch does not count.
        given: The numbers of the marked tensors that they were given as arguments.
        before_index: Called with the tensors of an index, before an operator selects by it.
        around: Calls an operator and returns its result, where more of it is to be noted.
    """

    def __init__(self, watched: int = -1) -> None:
        super().__init__()
        self.operations: List[Operation] = []
        self.line: Optional[Line] = None
        self.writes: Optional[WeightWriteGuard] = None
        self.written: Set[int] = set()
        self.given: Set[int] = set()
        self.before_index: Optional[Callable[[Sequence[Optional[torch.Tensor]]], None]] = None
        self.around: Optional[Callable[[Any, Tuple[Any, ...], Dict[str, Any]], Any]] = None
        # Tensors that operators read, and of which none in this block has computed them.
        self.constants: List[torch.Tensor] = []
        # Memory of inputs and weights, and of results that are computed from them or drawn.
        self._memory: Set[int] = set()
        self._varying: Set[int] = set()
        self._varies = False  # whether the last operator draws, or an argument of it is in such memory
        # Memory of data, and of results that are computed from them or drawn.
        self._data: Set[int] = set()
        self._takes_data = False
        # Where the arguments of the last operator are from, as far as they are marked.
        self._read: List[Tuple[int, int]] = []
        self._watched = watched
        # It marks the origin of tensors in this trace; those of an earlier one are constants.
        self._token = object()

    def mark(self, tensors: Iterable[torch.Tensor]) -> None:
        """Let tensors be inputs or weights, of which the values do not count."""
        for number, tensor in enumerate(tensors):
            setattr(tensor, _PLACE, (self._token, (_GIVEN, number)))
            self._memory.add(memory_of(tensor))

    def mark_memory(self, tensors: Iterable[torch.Tensor]) -> None:
        """Let others in the memory of tensors be no constants, such as `weight.data` in an attribute."""
        self._memory.update(map(memory_of, tensors))

    def mark_data(self, tensors: Iterable[torch.Tensor]) -> None:
        """Let the values of tensors be others in each call, as those of a batch."""
        self._data.update(map(memory_of, tensors))

    def is_data(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is data, is computed from some, or is drawn."""
        return tensor.layout is torch.strided and memory_of(tensor) in self._data

    def has_made(self, tensor: torch.Tensor) -> bool:
        """Return whether an operator in the block has computed a tensor, or the block was given it."""
        return getattr(tensor, _PLACE, (None, None))[0] is self._token

    def is_constant(self, tensor: torch.Tensor) -> bool:
        """Return whether no input or weight was read, and no number drawn, for the values of a tensor."""
        if tensor.layout is not torch.strided:
            return False
        memory = memory_of(tensor)
        return memory not in self._memory and not (memory in self._varying and self.has_made(tensor))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Optional[Dict[str, Any]] = None
    ) -> Any:
        kwargs = kwargs or {}
        written = list(written_by(func, args, kwargs)) if is_mutable(func) else ()
        if written:
            if self.writes is not None:
                self.writes.check(func, args, kwargs)
            self.written.update(map(memory_of, written))
        if self.before_index is not None and func is _INDEX:
            self.before_index(args[1])
        number = len(self.operations)
        if number == self._watched:
            self.line = current_line()
        self._note(func, args, kwargs)
        output = func(*args, **kwargs) if self.around is None else self.around(func, args, kwargs)
        for place, tensor in enumerate(output if isinstance(output, (list, tuple)) else [output]):
            if isinstance(tensor, torch.Tensor):
                setattr(tensor, _PLACE, (self._token, (number, place)))
                # The memory of a result that is gone may be that of the next one.
                memory = memory_of(tensor)
                (self._varying.add if self._varies else self._varying.discard)(memory)
                (self._data.add if self._takes_data else self._data.discard)(memory)
        if self._varies and written:
            memories = set(map(memory_of, written))
            self._varying |= memories
            if self._takes_data:
                self._data |= memories
        return output

    def _note(self, func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        self._read, self._varies = [], is_random(func)
        self._takes_data = self._varies
        self.operations.append((func, self._of(args), self._of(kwargs)))
        if self._takes_data and operator_name(func) in LIKE:
            self._takes_data = any(map(self.is_data, tensors_in((args[1:], kwargs))))

    def _of(self, value: Any) -> Hashable:
        """Return an argument, comparable."""
        if type(value) in _COMPARABLE:
            return value  # type: ignore[no-any-return]
        if isinstance(value, torch.Tensor):
            token, place = getattr(value, _PLACE, _NOWHERE)
            self._varies = self._varies or not self.is_constant(value)
            self._takes_data = self._takes_data or (bool(self._data) and self.is_data(value))
            if token is self._token:
                self._read.append(place)
                if place[0] == _GIVEN:
                    self.given.add(place[1])
                return place
            self.constants.append(value)
            return _constant(value)
        if isinstance(value, (list, tuple)):
            return tuple(map(self._of, value))
        if isinstance(value, dict):
            return tuple([(key, self._of(item)) for key, item in value.items()])
        if type(value) is _GENERATOR:  # isinstance() takes PyTorch longer than all the rest
            # One that the call has seeded is in the same state in another call; torch's own never counts as seeded.
            return _DRAWN, object() if value.initial_seed() == SEED else value.get_state().numpy().tobytes()
        # A float that is no number is equal to itself here.
        return repr(value) if isinstance(value, float) else value


class FirstCallRecorder(OperatorRecorder):  # type: ignore[no-untyped-call]
    """Also follows which tensors are computed from the inputs, whose draws leave the CPU's generator as it was.

    They are those of a device, such as dropout. Draws for the weights of a layer are those of the host.
    """

    def __init__(self) -> None:
        super().__init__()
        self._dependent: Set[Tuple[int, int]] = set()

    def begin(self, inputs: Sequence[torch.Tensor], weights: Iterable[torch.Tensor]) -> None:
        """Let tensors be the inputs, and others the weights, of the call that follows."""
        self.mark([*inputs, *weights])
        self._dependent.update([(_GIVEN, number) for number in range(len(inputs))])

    def depends(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is an input, or computed from one."""
        token, place = _place_of(tensor)
        return token is self._token and place in self._dependent

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Optional[Dict[str, Any]] = None
    ) -> Any:
        number = len(self.operations)
        state = torch.get_rng_state() if is_random(func) else None
        output = super().__torch_dispatch__(func, types, args, kwargs)
        if not self._dependent.isdisjoint(self._read):
            count = len(output) if isinstance(output, (list, tuple)) else 1
            self._dependent.update([(number, place) for place in range(count)])
            if is_mutable(func):
                # It may return nothing.
                for tensor in written_by(func, args, kwargs or {}):
                    token, place = _place_of(tensor)
                    if token is not self._token:
                        place = number, len(self._dependent)
                        setattr(tensor, _PLACE, (self._token, place))
                    self._dependent.add(place)
            if state is not None:
                torch.set_rng_state(state)
        return output

    def _note(self, func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        try:
            super()._note(func, args, kwargs)
        except Exception:  # a tensor without values, for example, which is like no other
            places = map(_place_of, tensors_in((args, kwargs)))
            self._read = [place for token, place in places if token is self._token]
            self.operations.append((func, object(), ()))


class Retrace:
    """Checks whether a call on the host still computes the same as at the compilation.

    Args:
        call: Calls the model in the `with` block of its argument, which records its operators.
        state_of: Finds the values that its code names again, when they are elsewhere.
        drawn_from: Random generators and iterators among its arguments.

    Attributes:
        only_keeps: Whether the values that every call changes only get tensors of the call, as a list of results does.
    """

    def __init__(
        self,
        call: Callable[[OperatorRecorder], Any],
        state_of: Callable[[], PythonState],
        drawn_from: Sequence[Any] = (),
    ) -> None:
        self.result: Any = None
        self._call, self._state_of, self._drawn_from = call, state_of, drawn_from
        # None if unknown.
        self._operations: Optional[List[Operation]] = None
        self.only_keeps = False

    def begin(
        self,
        state: PythonState,
        once: bool = False,
        everywhere: bool = False,
        earlier: Optional[List[Operation]] = None,
    ) -> List[str]:
        """Record the operators; returns the names of values that every call changes or finds changed.

        That are no tensors that it leaves behind anew, and does not read before: they are results, for others.

        Args:
            state: The values that its code names, found at this moment.
            once: True if it is known that there is nothing of that kind.
            everywhere: Whether tensors may be left in other places than attributes of the model's modules.
            earlier: The operators of an earlier call, whose changes were undone. If the next one has the same, and
                changes nothing, it is the last.
        """
        before: List[Operation] = []
        values: List[Hashable] = []
        drawn_from: List[Any] = []
        places: Optional[List[Hashable]] = None
        with draws_put_back():
            # Results of the first call, such as a cache, are unchanged in the second.
            for number in range(_MOST_TRACES):
                # An object in the place of None, for example, is found from then on.
                known = state.complete and (number != 1 or state.values() == values)
                state = state if known else self._state_of()
                if not known or places is None:
                    drawn_from = [*GLOBAL, *state.iterators, *self._drawn_from]
                    places = list(map(state_of, drawn_from))
                values, leading = state.values(), state.leading()
                if number or earlier is not None:
                    torch.default_generator.manual_seed(SEED)  # and not those of a GPU
                recorder = self._record()
                now, used = recorder.operations, {id(tensor) for tensor in recorder.constants}
                anew = state.left_behind(values, recorder.has_made, used, everywhere) if number else {}
                if number:
                    state.leave_remade(recorder.has_made, used)
                changed = state.changed(values, anew) or ([] if state.complete else ["new ones"])
                drawn = moved(drawn_from, places)
                places = None if drawn else places
                only_keeps = state.complete and state.only_keeps(values, recorder.has_made, anew) and not drawn
                changed += drawn
                if (number or earlier is not None) and torch.initial_seed() != SEED:
                    only_keeps = False
                    changed.append("the seed of torch: a device draws from a stream of its own")
                # An iterator that goes round may be where it was in the earlier call, and shows no place.
                same = now == earlier and not changed and len(drawn_from) == len(GLOBAL)
                same = same and all(map(operator.is_, leading, state.leading()))
                if once or (same and not number) or (number and not changed and now == before):
                    self._operations = now
                    state.leave_behind(chain.from_iterable(anew.values()))
                    return []
                if number and changed:
                    self.only_keeps = only_keeps
                    return changed
                before, last = now, before
            if any(_DRAWN in str(new) for old, new in zip(last, now) if old != new):
                return ["the state of a torch.Generator: draw without generator="]
            what = "values computed from the time or from random bytes, or from objects that no code names: "
            return list(map(name_of, drawn_from[2:])) or [what + self._difference(last, now)]

    def fingerprint(self) -> Optional[str]:
        """Return the fingerprint of the operators in every process, None if it may differ between processes."""
        text = repr(self._operations)
        told = self._operations is not None and _DRAWN not in text and " at 0x" not in text
        return sha256(text.encode()).hexdigest() if told else None

    def again(self) -> str:
        """Return in words the differences from the compilation; empty for none."""
        if self._operations is None:
            return ""
        with draws_put_back():
            try:
                for _ in range(_MOST_TRACES - 1):
                    operations = self._record().operations
                    if operations == self._operations:
                        return ""
                return self._difference(self._operations, operations)
            except (BatchError, CaptureError):
                return ""  # an object among the arguments is another one by now
            except Exception as error:
                return f"it raises {type(error).__name__}: {error}"

    def _record(self, watched: int = -1) -> OperatorRecorder:
        recorder = OperatorRecorder(watched)
        with ignored_warnings():  # the first call gives them
            self.result = self._call(recorder)
        return recorder

    def _difference(self, before: List[Operation], now: List[Operation]) -> str:
        """Return the places where two calls differ, with both values."""
        pairs = enumerate(zip(before, now))
        number = next((number for number, (old, new) in pairs if old != new), min(len(before), len(now)))
        line = self._record(min(number, len(now) - 1)).line
        (old, *was), (new, *given) = [each[number] if number < len(each) else ("nothing",) for each in (before, now)]
        if old is not new:
            return f"{new} at {line}, where it was {old}"
        return f"{new} at {line} has {given}, and had {was}"


def _place_of(tensor: torch.Tensor) -> Tuple[Any, Tuple[int, int]]:
    """Return the token of the recorder that has marked a tensor last, and where the tensor is from."""
    found: Tuple[Any, Tuple[int, int]] = getattr(tensor, _PLACE, _NOWHERE)
    return found


def _constant(tensor: torch.Tensor) -> Hashable:
    """Return the description of a tensor from outside; other guards compare the values of weights.

    Raises:
        CaptureError: It stands for a value that is still to come.
    """
    refuse = AWAITED.get(type(tensor))
    if refuse is not None:
        refuse(tensor)
    with DisableTorchFunctionSubclass():
        shape, dtype = tuple(shape_of(tensor)), dtype_of(tensor)
    if issubclass(type(tensor), torch.nn.Parameter):
        return shape, dtype
    values = plain(tensor).contiguous()
    if values.numel() <= _MOST_SHOWN:
        return shape, dtype, repr(values.tolist())
    return shape, dtype, checksum_of(values)
