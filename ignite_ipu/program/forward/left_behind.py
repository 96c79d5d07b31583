"""Tensors that each call of a model stores for others: in attributes of its modules, and in containers of hooks.

Examples are an auxiliary loss on a layer, and the features that a hook puts into a dictionary. In eager PyTorch they
are those of the last call, and gradients flow through them. To a compiled program they are results, beside those of the
call.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict, deque
from itertools import repeat
from operator import is_
from types import CellType, GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any, Callable, Container, Dict, Iterable, Iterator, List, Optional, Protocol, Sequence, Set, Tuple

import torch
from torch import nn

from ignite_ipu.capabilities.traced import LIST, MOVED
from ignite_ipu.errors import CaptureError, ForwardError
from ignite_ipu.program.forward.module_attributes import constant_of, plain_attributes, tensors_in
from ignite_ipu.program.guards.names import Named
from ignite_ipu.program.guards.values import FUNCTIONS, elements_of, is_left_behind, leave_behind, note_stored
from ignite_ipu.program.tensors.iterators import with_items
from ignite_ipu.program.tensors.trees import PLAIN, attributes_of, restore_contents
from ignite_ipu.program.user_code import current_line
from ignite_ipu.torch_names.modules import attributes_of_modules

# The attributes that PyTorch gives every module.
_OWN = frozenset(attributes_of_modules())
_FILLED = (list, deque, dict)
# Of these types exactly, most collections in the attributes of a module are empty, and most others without tensors.
_COLLECTIONS = frozenset((list, deque, dict, OrderedDict))
_WITHOUT_TENSORS = PLAIN | {set, frozenset}
_MOST_ENTRIES = 1024
# Types that hold no tensors of calls.
_CODE = (nn.Module, type, ModuleType, *FUNCTIONS)
_DESCRIPTORS = (MemberDescriptorType, GetSetDescriptorType)
_MISSING = object()


class Place:
    """An attribute, a variable, or an entry of a list or a dictionary, in which a call leaves tensors that it computes.

    Args:
        owner: The object, the cell, or the place of the list or dictionary, in which the loop may put another.
        key: Where in it.
    """

    def __init__(self, owner: Any, key: Any) -> None:
        self._owner, self._key = owner, key

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return False
        same = other._owner is self._owner or (isinstance(self._owner, Place) and other._owner == self._owner)
        return same and bool(other._key == self._key)

    def __hash__(self) -> int:
        return hash((type(self), self._key))

    def read(self) -> Any:
        """Return the present values."""
        own, key = self._own, self._key
        if isinstance(own, CellType):
            return _cell_contents(own)
        if isinstance(own, dict):
            return own.get(key, _MISSING)
        if isinstance(own, (list, deque, tuple)):
            return own[key] if key < len(own) else _MISSING
        found = getattr(own, "__dict__", {}).get(key, _MISSING)
        if found is _MISSING and isinstance(getattr(type(own), key, None), _DESCRIPTORS):
            found = getattr(own, key, _MISSING)
        return found

    def write(self, value: Any) -> None:
        """Put something else there."""
        own, key = self._own, self._key
        if value is _MISSING:
            if self.read() is not _MISSING:
                _remove(own, key)
        elif isinstance(own, (list, deque)) and key == len(own):
            own.append(value)
        elif isinstance(own, (list, deque, dict)):
            own[key] = value
        elif isinstance(own, CellType):
            own.cell_contents = value
        elif key in getattr(own, "__dict__", ()) and not isinstance(own, type):
            own.__dict__[key] = value
        else:
            setattr(own, key, value)

    @property
    def depth(self) -> int:
        """The number of containers that it is in."""
        return self._owner.depth + 1 if isinstance(self._owner, Place) else 0

    @property
    def has_left(self) -> bool:
        """True if there are tensors that a call has left."""
        return any(map(is_left_behind, tensors_in(self.read())))

    def is_within(self, places: Container[Place]) -> bool:
        """Return whether it is an entry of the value at one of some places."""
        return isinstance(self._owner, Place) and (self._owner in places or self._owner.is_within(places))

    def clear(self) -> None:
        """Remove, before a call, values that PyTorch would not have then."""

    def check(self) -> None:
        """Refuse to write where a call in eager PyTorch would not."""

    @property
    def _own(self) -> Any:
        return self._owner.read() if isinstance(self._owner, Place) else self._owner


class Added(Place):
    """An entry that a call adds to a list, or with a list to a dictionary: loops clear these before each call."""

    def clear(self) -> None:
        self.write(_MISSING)

    def check(self) -> None:
        own = self._own
        # A list that is shorter now had some at the call that showed the place.
        if self.read() is not _MISSING or (isinstance(own, (list, deque)) and self._key > len(own)):
            raise CaptureError(LIST.refusal(f"Each call of the model, as that at {current_line()},"))


class LeftBehind:
    """Finds the places of a model in which there are other tensors after a call than before, when this was made.

    Or none, where an earlier call has left some: then others find there the value of this call, such as None.

    Args:
        named: The values that the model's code reaches by names.
        words: The names of the attributes and variables that may be such places; entries of all lists and dictionaries
            that its code gets at are. They are looked up once there are new tensors.
    """

    def __init__(self, named: Named, words: Container[str]) -> None:
        self._words = words
        # Places, their values, and the names that have to be among the words, if any has to be.
        self._before: List[Tuple[Place, Any, Optional[str]]] = []
        # The filled ones, with their contents.
        self._filled: List[Tuple[Place, Any, Any, Optional[str]]] = []
        # Attributes of modules, which are compared by C, and the empty collections among them.
        self._attributes: List[Tuple[Dict[str, Any], Dict[str, Any]]] = []
        self._empty: List[Any] = []
        self._empty_at: List[Tuple[Dict[str, Any], str]] = []
        self._known: Set[int] = set()
        self._seen: Set[int] = set()
        for owner, key in named.owners:
            place = Place(owner.__dict__ if isinstance(owner, nn.Module) else owner, key)
            always = isinstance(owner, CellType) or isinstance(place.read(), (*_FILLED, tuple))
            self._note(place, None if always else key)
        for own in named.objects:
            if isinstance(own, nn.Module):
                self._note_module(own.__dict__)
                continue
            for name in list(vars(own) if isinstance(own, type) else attributes_of(own)):
                self._note(Place(own, name), name)

    def _note_module(self, own: Dict[str, Any]) -> None:
        before = plain_attributes(own)
        self._attributes.append((own, before))
        for name, value in before.items():
            if name in _OWN and not value:
                continue  # no hooks, of which PyTorch has a table for each kind
            kind = type(value)
            if kind in _WITHOUT_TENSORS or (kind is tuple and PLAIN.issuperset(map(type, value))):
                continue
            if kind in _COLLECTIONS and not value:
                if id(value) not in self._seen:
                    self._seen.add(id(value))
                    self._empty.append(value)
                    self._empty_at.append((own, name))
            elif not isinstance(value, _CODE):
                self._note_value(Place(own, name), value, name)

    def _note(self, place: Place, name: Optional[str]) -> None:
        value = place.read()
        if isinstance(value, _CODE):
            return
        self._before.append((place, value, name))
        self._note_value(place, value, name)

    def _note_value(self, place: Place, value: Any, name: Optional[str]) -> None:
        self._known.update(map(id, tensors_in(value)))
        is_filled = isinstance(value, _FILLED)
        if is_filled or isinstance(value, tuple):
            if id(value) in self._seen or len(elements_of(value)) > _MOST_ENTRIES:
                return
            self._seen.add(id(value))
            entries = _entries(value)
            if is_filled:
                contents = dict(entries) if isinstance(value, dict) else list(value)
                self._filled.append((place, value, contents, name))
            for key, entry in entries:
                if is_filled:
                    self._note(Place(place, key), name)
                elif isinstance(entry, (*_FILLED, tuple)):  # of a tuple, whose entries stay
                    self._note_value(Place(place, key), entry, name)

    def places(self, grows: bool = False) -> List[Place]:
        """Return where there are others now; those of lists that grow are taken away before each call.

        Those come last that are entries no more, beginning with the last of a list.
        """
        self._refuse_moved_in_lists()
        found: List[Place] = []
        removed: List[Place] = []
        for place, before, name in [*self._changed_attributes(), *self._before]:
            value = place.read()
            # Remaining containers have other places.
            if value is not before and (self._is_new(value) or _is_cleared(before, value)) and self._may_be(name):
                (removed if value is _MISSING else found).append(place)
        for place, filled, before, name in self._collections():
            if place.read() is filled:
                for key, value in _added(filled, before):
                    if self._is_new(value) and self._may_be(name):
                        found.append((Added if grows and _grows(filled, value) else Place)(place, key))
        return [*found, *[place for place in reversed(removed) if not place.is_within(found)]]

    def cleared(self) -> List[Tuple[Place, Any]]:
        """Return where there are no tensors of an earlier call any more, with the values from before."""
        pairs = [(place, before) for place, before, _ in [*self._changed_attributes(), *self._before]]
        return [(place, before) for place, before in pairs if _is_cleared(before, place.read())]

    def put_cleared_back(self) -> None:
        """Put the tensors of an earlier call back that this one has cleared, so that the next one clears them, too."""
        for place, before in self.cleared():
            place.write(before)

    def constants(self, value_of: Callable[[torch.Tensor], Optional[torch.Tensor]]) -> List[Tuple[Place, torch.Tensor]]:
        """Return the attributes of modules in which a trace has replaced a tensor by a constant, with the constant.

        That is no result of a call: eager PyTorch has the same tensor there after the next one.
        """
        return [
            (place, place.read())
            for place, before, _ in self._changed_attributes()
            if constant_of(before, place.read(), value_of) is not None
        ]

    def _changed_attributes(self) -> List[Tuple[Place, Any, str]]:
        """Return the attributes of modules that are others now, with their values before."""
        return [
            (Place(own, name), value, name)
            for own, before in self._attributes
            if not all(map(is_, map(own.get, before, repeat(_MISSING)), before.values()))
            for name, value in before.items()
            if own.get(name, _MISSING) is not value and not isinstance(value, _CODE)
        ]

    def _collections(self) -> Iterator[Tuple[Place, Any, Any, Optional[str]]]:
        """Yield the places of collections that were filled before, or are filled now, with their contents before."""
        yield from self._filled
        if any(self._empty):
            for value, (own, name) in zip(self._empty, self._empty_at):
                if value:
                    yield Place(own, name), value, {} if isinstance(value, dict) else [], name

    def _is_new(self, value: Any) -> bool:
        """Return whether a value has tensors that were not there before."""
        return any(id(tensor) not in self._known for tensor in tensors_in(value))

    def _may_be(self, name: Optional[str]) -> bool:
        """Return whether others may read the values at a place of this name."""
        return name is None or name in self._words

    @property
    def may_grow(self) -> bool:
        """True if lists have more tensors, or dictionaries have other lists: so they may in each call."""
        return bool(self._growing())

    @property
    def grows(self) -> bool:
        """True if there are more tensors in lists than before this call, which is not the first.

        Raises:
            ForwardError: The call has moved tensors in a list.
        """
        self._refuse_moved_in_lists()
        return any(not isinstance(filled, dict) for filled, _ in self._growing())

    def shrink(self) -> None:
        """Remove the elements that `may_grow` has found."""
        for filled, key in reversed(self._growing()):
            _remove(filled, key)

    def _growing(self) -> List[Tuple[Any, Any]]:
        return [
            (filled, key)
            for _, filled, before, name in self._collections()
            for key, value in _added(filled, before)
            if _grows(filled, value) and self._is_new(value) and self._may_be(name)
        ]

    @property
    def stores(self) -> bool:
        """True if there are other tensors now, wherever the code gets at."""
        pairs = [*self._changed_attributes(), *self._before]
        values = [place.read() for place, value, _ in pairs if place.read() is not value]
        values += [value for _, filled, before, _ in self._collections() for _, value in _added(filled, before)]
        return any(map(self._is_new, values))

    def refuse_moved(self) -> None:
        """Refuse a call, which is not the first, if it has moved tensors of an earlier one to other places.

        They are no results of it: a queue of a fixed length drops its first tensor, or `old = new` comes before `new`.
        """
        changed = [(place.read(), before) for place, before, _ in [*self._changed_attributes(), *self._before]]
        for _, filled, before, _ in self._collections():
            changed += [(value, None) for _, value in _added(filled, before)]
        for value, before in changed:
            if value is not before and not isinstance(value, _CODE):
                there = set(map(id, tensors_in(before)))
                if any(id(each) in self._known and id(each) not in there for each in tensors_in(value)):
                    raise ForwardError(MOVED.refusal(f"The call at {current_line()}"))
        self._refuse_moved_in_lists()

    def _refuse_moved_in_lists(self) -> None:
        for _, filled, before, _ in self._collections():
            if isinstance(filled, dict) or not before or all(map(is_, filled, before)):
                continue
            places = {(id(each), number) for number, each in enumerate(before) if tensors_in(each)}
            held = {key for key, _ in places}
            if any(id(each) in held and (id(each), number) not in places for number, each in enumerate(filled)):
                raise ForwardError(MOVED.refusal(f"The call at {current_line()}"))

    def put_back(self) -> None:
        """Put everything back."""
        for place, value, _ in [*self._changed_attributes(), *self._before]:
            if place.read() is not value:
                place.write(value)
        for _, filled, before, _ in list(self._collections()):
            restore_contents(filled, before)


class KindOfCall(Protocol):
    """Calls of one kind, which all store values in the same places, `left`.

    Attributes:
        unsure: Other places of which it is unknown whether they store something there, as there were no tensors yet.
    """

    @property
    def left(self) -> Sequence[Place]: ...

    unsure: Sequence[Place]


class LeftPlaces:
    """The places in which any kind of calls of a model leaves tensors.

    A call of another kind may put something else there, such as None. That shows when there are tensors before.
    """

    def __init__(self) -> None:
        self._places: Dict[Place, None] = {}
        self._kinds: weakref.WeakSet[Any] = weakref.WeakSet()

    def learn(self, kind: KindOfCall) -> None:
        """Take over the places of a kind of calls, one of which was made just now and has stored nothing."""
        new = [place for place in kind.left if place not in self._places]
        self._places.update(dict.fromkeys(new))
        for other in self._kinds if new else ():
            other.unsure = [*other.unsure, *[place for place in new if place not in other.left]]
        kind.unsure = [place for place in self._places if not (place in kind.left or place.has_left)]
        self._kinds.add(kind)


def may_leave_others(kind: KindOfCall) -> bool:
    """Return whether there are tensors now where it is unknown if such a call puts something else."""
    return bool(kind.unsure) and any(place.has_left for place in kind.unsure)


def _cell_contents(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the variable has no value yet
        return _MISSING


def _remove(own: Any, key: Any) -> None:
    if isinstance(own, CellType):
        del own.cell_contents
    elif isinstance(own, _FILLED):
        del own[key]
    else:
        delattr(own, key)


def _entries(filled: Any) -> List[Tuple[Any, Any]]:
    return list(elements_of(filled) if isinstance(filled, dict) else enumerate(filled))


def _added(filled: Any, before: Any) -> List[Tuple[Any, Any]]:
    """Return the new entries of a list or a dictionary."""
    if isinstance(filled, dict):
        return [(key, value) for key, value in _entries(filled) if key not in before]
    return _entries(filled)[len(before) :]


def _grows(filled: Any, added: Any) -> bool:
    """Return whether a container to which a call has added a value may hold more after another call."""
    within = added.values() if isinstance(added, dict) else [added]
    return not isinstance(filled, dict) or any(map(_is_list, within))


def _is_cleared(before: Any, now: Any) -> bool:
    """Return whether a value had tensors of an earlier call, and there are none now."""
    return any(map(is_left_behind, tensors_in(before))) and not tensors_in(now)


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, deque))


def put(places: Sequence[Place], values: Iterable[Any], own: Container[int] = ()) -> None:
    """Put values into places, where they count for nothing when the next call comes, which writes there first.

    Those with the ids `own` are parameters and buffers of the model, which count under their other names.

    Raises:
        CaptureError: A list was not cleared since the last call.
    """
    for place, value in zip(places, values):
        place.check()
        leave_all(value, own)
        place.write(value)


def leave_all(value: Any, own: Container[int] = ()) -> None:
    """Let the tensors in a value count for nothing, and those with the ids `own` only where they are stored."""
    for tensor in tensors_in(value):
        if id(tensor) in own:
            note_stored(tensor)
        else:
            leave_behind(tensor)


def called_beside(places: Sequence[Place], call: Callable[[], Any]) -> Any:
    """Return the results of a call, and the tensors that it stores in places, if any; the places are restored."""
    if not places:
        return with_items(call())
    before = [place.read() for place in places]
    for place in reversed(places):
        place.clear()
    try:
        return with_items(call()), [place.read() for place in places]
    finally:
        # Containers come first, so that nothing is written into those that the call has made, which are results.
        for place, value in sorted(reversed(list(zip(places, before))), key=lambda pair: pair[0].depth):
            place.write(value)
