"""Values that a model's code reads from Python: a compiled program has the values at trace time.

Examples are a number that a loop anneals, a dropout rate, or a mask that is replaced. A changed value, whether an
attribute of the model or a global, needs another program. A `forward` that changes values itself would do so once,
while it is traced, and in eager PyTorch in every step.
"""

from __future__ import annotations

import operator
import weakref
from itertools import chain, cycle
from types import FunctionType
from typing import Any, Callable, Container, Dict, Hashable, Iterable, List, Optional, Sequence, Set, Tuple

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from ignite_ipu.program.guards.names import Named
from ignite_ipu.program.guards.saved_attributes import SavedAttributes
from ignite_ipu.program.guards.values import (
    FUNCTIONS,
    READ,
    OwnVersion,
    Reader,
    is_fixed,
    is_grown,
    is_left_behind,
    leave_behind,
    replaced_tensors,
)
from ignite_ipu.program.module_state import REGISTRATIONS, RUN_BY_PYTHON
from ignite_ipu.program.tensors.trees import PLAIN, attributes_of, opened_record, tensors_in
from ignite_ipu.program.user_code import read_by
from ignite_ipu.torch_names.modules import (
    FORWARD_HOOKS,
    MODULES,
    all_named_modules,
    buffers_of,
    forward_hooks_of,
    global_hooks,
    parameters_of,
)

_VALUES = (*READ, *FUNCTIONS, nn.Module)
_GLOBAL_HOOKS = global_hooks(*FORWARD_HOOKS)
# The attributes of a module are faster to read than the module.
is_training: Callable[[Dict[str, Any]], bool] = operator.itemgetter("training")
"""Returns the mode of a module, by its attributes."""
_MODE = "training"
# So many of PyTorch's own modules are checked in one call for silent changes, and the next ones in the next.
_AT_ONCE = 32


class _StateReader(Reader):
    """Reads objects that calls have made of the tensors that they leave by their class, and by the plain parts.

    Args:
        own: Parameters and buffers of the modules, whose values a program has anyway: writes into them do not count.
        but: Returns whether the values of a tensor do not count either.
    """

    def __init__(self, own: Iterable[torch.Tensor], but: Callable[[torch.Tensor], Any]) -> None:
        self._own = weakref.WeakValueDictionary({id(tensor): tensor for tensor in own})
        self._but = but

    def of_tensor(self, tensor: torch.Tensor) -> Hashable:
        is_own = id(tensor) in self._own or bool(self._but(tensor))
        return OwnVersion(tensor) if is_own else super().of_tensor(tensor)

    def of_object(self, value: Any) -> Hashable:
        if not _is_left(value):
            return super().of_object(value)
        return (type(value), *[(name, self.read(part)) for name, part in _plain_parts(value).items()])


class _RecordReader(Reader):
    """Reads objects by their attributes, as a distribution that is made of others."""

    def __init__(self) -> None:
        self._within: Set[int] = set()

    def of_object(self, value: Any) -> Hashable:
        if isinstance(value, (*_VALUES, type)) or id(value) in self._within:
            return super().of_object(value)
        self._within.add(id(value))
        return type(value), self.read(attributes_of(value))


def is_remade(old: Any, new: Any) -> bool:
    """Return whether an object is the same, or another one that a call has made of the tensors that it leaves."""
    return new is old or (type(new) is type(old) and _is_left(old) and _is_left(new))


def _plain_parts(value: Any) -> Dict[str, Any]:
    """Return the numbers, strings and the like among the attributes of an object."""
    return {name: part for name, part in attributes_of(value).items() if type(part) in PLAIN}


def _is_left(value: Any) -> bool:
    return not isinstance(value, (*FUNCTIONS, nn.Module)) and any(map(is_left_behind, tensors_in(value)))


class _Tables:
    """Dictionaries of modules that must not change: attributes by their number, others by their contents."""

    def __init__(self, modules: Sequence[Dict[str, Any]], hooks: Sequence[Dict[Any, Any]] = ()) -> None:
        self._attributes, self._sizes = modules, list(map(len, modules))
        tables = [*[own[MODULES] for own in modules], *hooks]
        self._empty, self._filled = ([table for table in tables if bool(table) is full] for full in (False, True))
        self.held = list(chain.from_iterable(map(dict.values, self._filled)))

    @property
    def same(self) -> bool:
        """True if no attribute has come or gone, and the same modules and hooks are there."""
        if list(map(len, self._attributes)) != self._sizes or any(self._empty):
            return False
        return list(chain.from_iterable(map(dict.values, self._filled))) == self.held


class _Settings:
    """Attributes of libraries' layers, such as a momentum: C reads them, as a model has many, and few loops write any.

    Attributes:
        names: Names of the values in messages, in their order.
        columns: A reader of each attribute, and the attributes of all layers that have it.
    """

    def __init__(self, settings: Iterable[Tuple[str, Dict[str, Any], Tuple[str, ...]]]) -> None:
        having: Dict[str, List[Tuple[str, Dict[str, Any]]]] = {}
        for path, attributes, names in settings:
            for name in names:
                having.setdefault(name, []).append((path, attributes))
        self.names = [f"{path}.{name}" if path else name for name, each in having.items() for path, _ in each]
        self._having = [(name, [attributes for _, attributes in each]) for name, each in having.items()]
        self.columns = [(operator.itemgetter(name), layers) for name, layers in self._having]

    def incomplete(self) -> List[Any]:
        """Return the values where an attribute is gone, which has the value None."""
        return [own.get(name) for name, layers in self._having for own in layers]


class _Values:
    """The values of a model's code, compared with those of the last call of this.

    Attributes:
        objects: The objects that had these values.
    """

    def __init__(
        self, reads: Sequence[Callable[[], Any]], settings: _Settings, read: Callable[[Any], Hashable]
    ) -> None:
        self._reads, self._settings, self._read = reads, settings, read
        self.objects: List[Any] = []
        self._changeable: List[Any] = []
        self._contents: List[Hashable] = []
        self._values: List[Hashable] = []

    def __call__(self) -> List[Hashable]:
        """Return the values of this moment, comparable; the same list while nothing has changed."""
        found = [read() for read in self._reads] if self._reads else []
        try:
            for read_each, layers in self._settings.columns:
                found += map(read_each, layers)
        except KeyError:
            found = [*found[: len(self._reads)], *self._settings.incomplete()]
        same = len(found) == len(self.objects) and all(map(operator.is_, found, self.objects))
        if not same:
            self.objects = found
            self._changeable = [value for value in found if not isinstance(value, FUNCTIONS) and not is_fixed(value)]
        # While they are the same objects, only those can have other values that are changed in place.
        contents = list(map(self._read, self._changeable))
        if not same or contents != self._contents:
            self._contents, self._values = contents, list(map(self._read, found))
        return self._values


class PythonState:
    """The attributes of a model's modules, and the variables that its code names, which a trace reads as constants.

    Checks cost next to nothing for PyTorch's own modules: PyTorch reports the registration of hooks and modules. Other
    changes, such as a `forward` that is put into one of its layers, are looked for in turns in a larger model.

    Args:
        *others: Functions and objects that are called beside it, such as a loss.
        named: The values that their code reaches by names, if looked up.
        but: Returns for a tensor that is none of the model's whether somebody else follows its values.

    Attributes:
        names: Names of the values in messages.
        lead_names: Names of the objects that lead to values, of which `leading` returns those in these places now.
        parts: The modules within the model and the others, and their hooks.
        words: All names that the code reads.
        iterators: The iterators and random generators among them.
        values: Returns the values of this moment.
        attributes, moded: The attributes of the modules, and of those that `training` is about.
    """

    def __init__(
        self,
        model: nn.Module,
        *others: Any,
        named: Optional[Named] = None,
        but: Callable[[torch.Tensor], Any] = lambda tensor: False,
    ) -> None:
        called = parts_of(model, *others)
        named = Named(called) if named is None else named
        self.words, self.iterators = named.names, named.iterators
        modules = [part for _, part in called if isinstance(part, nn.Module)]
        self.attributes = [vars(part) for part in modules]
        # The class of a part changes when it is captured; the new one reports the original as its class.
        reads = {kind: _MODE in self.words or _reads_mode(kind) for kind in {part.__class__ for part in modules}}
        # A hook of a library's may read it, too: that of a spectral norm does.
        own_hooks = list(map(forward_hooks_of, self.attributes))
        # The wrapper of torch.compile has no mode of its own, but that of the module within.
        self.moded = [
            vars(part)
            for part, hooks in zip(modules, own_hooks)
            if (part is model or any(hooks) or reads[part.__class__]) and _MODE in vars(part)
        ]
        every_hook = [*_GLOBAL_HOOKS, *chain.from_iterable(own_hooks)]
        self._hookless, filled = ([table for table in every_hook if bool(table) is full] for full in (False, True))
        pytorchs = {kind: _is_pytorchs(kind) for kind in set(map(type, modules))}
        theirs, users = ([vars(part) for part in modules if pytorchs[type(part)] is own] for own in (True, False))
        self._watched = _Tables(users, filled) if users or filled else None
        starts = range(0, len(theirs), _AT_ONCE)
        self._in_turns = [_Tables(theirs[start : start + _AT_ONCE]) for start in starts]
        self._turns = cycle(self._in_turns or [None])
        self.parts = [part for tables in (self._watched, *self._in_turns) if tables for part in tables.held]
        # Counters that differ after registrations of hooks, or replacements of modules.
        REGISTRATIONS.follow()
        self._registered = RemovableHandle.next_id, REGISTRATIONS.count, RUN_BY_PYTHON.count
        self._modes: List[bool] = []
        # Objects that lead to values are no values: with another in its place, these are elsewhere.
        values = [isinstance(read(), _VALUES) for _, read in named.places]
        leads = [place for place, is_value in zip(named.places, values) if not is_value]
        self.lead_names, self._leads = [name for name, _ in leads], [read for _, read in leads]
        self._leading = [read() for read in self._leads]
        # By number: of objects that calls make, the parts that are constants of a program.
        self._made = {number: _plain_parts(value) for number, value in enumerate(self._leading) if _is_left(value)}
        places = [place for place, is_value in zip(named.places, values) if is_value]
        settings = _Settings(named.settings)
        self.names = [name for name, _ in places] + settings.names
        own = [each for part in modules for each in (*parameters_of(part).values(), *buffers_of(part).values())]
        reader = _StateReader([each for each in own if each is not None], but)
        self.values = _Values([read for _, read in places], settings, reader.read)

    @property
    def within(self) -> str:
        """Time within which `complete` has become false, for messages; empty where that is seen in the next step."""
        turns = len(self._in_turns)
        return f", within the last {turns} steps" if turns > 1 else ""

    @property
    def complete(self) -> bool:
        """True if parts are the same, no attribute has come or gone since, and values are found at the same places."""
        registered = RemovableHandle.next_id, REGISTRATIONS.count, RUN_BY_PYTHON.count
        if self._registered != registered:
            if any(self._hookless) or not all(tables.same for tables in self._in_turns):
                return False
            if self._registered[-1] != registered[-1]:
                return False
            self._registered = registered
        if self._leads:
            leading = self.leading()
            if not all(map(operator.is_, leading, self._leading)):
                if not all(map(is_remade, self._leading, leading)):
                    return False
                for number, (old, new) in enumerate(zip(self._leading, leading)):
                    if new is not old:
                        self._made.setdefault(number, _plain_parts(old))
                self._leading = leading
            if any(_plain_parts(leading[number]) != parts for number, parts in self._made.items()):
                return False
        watched, in_turn = self._watched, next(self._turns)
        return (watched is None or watched.same) and (in_turn is None or in_turn.same)

    @property
    def is_untouched(self) -> bool:
        """True if all that leads to values is the same, in all modules at once."""
        if any(self._hookless) or not all(map(operator.is_, self.leading(), self._leading)):
            return False
        return self.complete and all(tables.same for tables in self._in_turns)

    def leading(self) -> List[Any]:
        """Return the objects that lead to values now."""
        return [read() for read in self._leads]

    def now(self) -> Optional[Tuple[List[bool], List[Hashable]]]:
        """Return the results of `training` and `values`; None if this is not `complete` any more."""
        registered = RemovableHandle.next_id, REGISTRATIONS.count, RUN_BY_PYTHON.count
        if self._registered == registered and not self._leads and self._watched is None:
            tables = next(self._turns)
            if tables is not None and not tables.same:
                return None
        elif not self.complete:
            return None
        modes = list(map(is_training, self.moded))
        if modes != self._modes:
            self._modes = modes
        return self._modes, self.values()

    def training(self) -> List[bool]:
        """Return whether each module is in training mode that reads that, and the model; the same list for the same."""
        modes = list(map(is_training, self.moded))
        if modes != self._modes:
            self._modes = modes
        return self._modes

    def set_training(self, modes: Sequence[bool]) -> None:
        """Put each module in training mode or not, as `training` returned."""
        for attributes, mode in zip(self.moded, modes):
            attributes["training"] = mode

    def saved(self) -> SavedAttributes:
        """Return the present Python values in attributes of modules, to have them again later."""
        return SavedAttributes(self.attributes)

    def left_behind(
        self, before: Sequence[Hashable], made: Callable[[torch.Tensor], bool], used: Container[int], everywhere: bool
    ) -> Dict[int, List[torch.Tensor]]:
        """Return the tensors that a call has made and put in the place of others, which it has not used.

        Args:
            before: The result of `values` before the call.
            made: Returns whether the call has made a tensor.
            used: Ids of the tensors that the call has used, and not made.
            everywhere: Whether they may be in other values than attributes of the model's modules.

        Returns:
            The new tensors by the number of the value, which is the same but for them.
        """
        own = {id(value) for attributes in self.attributes for value in attributes.values()}
        found = {}
        for number, (old, new, value) in enumerate(zip(before, self.values(), self.values.objects)):
            pairs = replaced_tensors(old, new) if everywhere or id(value) in own else None
            if pairs and all(made(tensor) and id(former) not in used for former, tensor in pairs):
                found[number] = [tensor for _, tensor in pairs]
        return found

    def leave_remade(self, made: Callable[[torch.Tensor], bool], used: Container[int]) -> None:
        """Let the tensors of objects count for nothing that a call has made of its tensors, such as a distribution.

        Args:
            made, used: As of `left_behind`.
        """
        for number, (read, old) in enumerate(zip(self._leads, list(self._leading))):
            new = read()
            if new is old or opened_record(new) is None:
                continue
            pairs = replaced_tensors(_RecordReader().of_object(old), _RecordReader().of_object(new))
            if pairs and all(made(tensor) and id(former) not in used for former, tensor in pairs):
                self.leave_behind(tensor for _, tensor in pairs)
                self._leading[number], self._made[number] = new, _plain_parts(new)

    def only_keeps(
        self, before: Sequence[Hashable], made: Callable[[torch.Tensor], bool], but: Container[int] = ()
    ) -> bool:
        """Return whether values differ from those `before` only by tensors of a call that were added to containers."""
        pairs = enumerate(zip(before, self.values()))
        return all(old == new or number in but or is_grown(old, new, made) for number, (old, new) in pairs)

    def leave_behind(self, tensors: Iterable[torch.Tensor]) -> None:
        """Let tensors among the values count for nothing, here and where others look at these values."""
        for tensor in tensors:
            leave_behind(tensor)
        self.values.objects = []  # which are compared by their contents

    def changed(self, before: List[Hashable], but: Container[int] = ()) -> List[str]:
        """Return the names of the attributes that had other values before, `but` those of these numbers."""
        pairs = enumerate(zip(self.names, before, self.values()))
        return list(dict.fromkeys(name for number, (name, old, new) in pairs if old != new and number not in but))


def named_by(model: nn.Module) -> Named:
    """Return the values that a model's code reaches by names."""
    return Named(parts_of(model))


def parts_of(*called: Any) -> List[Tuple[str, Any]]:
    """Return the code of a call of modules and functions, with paths: all modules, and the hooks of any.

    Modules whose code Python runs are left out.
    """
    parts: List[Tuple[str, Any]] = []
    for each in called:
        parts += all_named_modules(each) if isinstance(each, nn.Module) else [("", each)]
    parts = (
        [(path, each) for path, each in parts if not RUN_BY_PYTHON.has_no_constants(each)]
        if RUN_BY_PYTHON.count
        else parts
    )
    return [*parts, *[("self", hook) for hooks in _GLOBAL_HOOKS for hook in hooks.values()]]


def _is_pytorchs(kind: type) -> bool:
    return kind.__module__.startswith("torch.nn.")


def _reads_mode(kind: type) -> bool:
    """Return whether a module's code may compute otherwise in training than in evaluation mode."""
    own = kind.__mro__[: kind.__mro__.index(nn.Module)]
    functions = [member for base in own for member in vars(base).values() if isinstance(member, FunctionType)]
    return not _is_pytorchs(kind) or any(_MODE in read_by(function.__code__) for function in functions)
