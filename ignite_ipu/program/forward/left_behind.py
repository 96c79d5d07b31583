"""Tensors that each call of a model leaves behind for others: in attributes of its modules, and in what hooks fill.

An auxiliary loss on a layer, the features that a hook has put into a dictionary: natively they are those of the last
call, and gradients flow through them. To a compiled program they are results, beside what the call returns.
"""

from __future__ import annotations

from typing import Any, Callable, Container, List, Mapping, Sequence, Set, Tuple

from torch import nn

from ignite_ipu.program.forward.module_attributes import plain_attributes, tensors_in
from ignite_ipu.program.guards.python_state import PythonState
from ignite_ipu.program.guards.values import leave_behind

__all__ = ["LeftBehind", "Place", "called_beside", "put"]


_FILLED = (list, dict)


class Place:
    """An attribute, or an entry of a list or a dictionary, in which each call leaves tensors that it has computed.

    Args:
        own: The attributes, the list or the dictionary.
        key: The attribute's name, or where in the list or dictionary it is.
    """

    def __init__(self, own: Any, key: Any) -> None:
        self._own, self._key = own, key

    def read(self) -> Any:
        """Return what is there."""
        return self._own[self._key]

    def write(self, value: Any) -> None:
        """Put something else there; a list may have been cleared by the loop."""
        if isinstance(self._own, list) and self._key == len(self._own):
            self._own.append(value)
        else:
            self._own[self._key] = value


class LeftBehind:
    """Finds the places of a model in which there are other tensors after a call than before, when this was made.

    Args:
        state: The values that its code names; entries of lists and dictionaries among them are such places, too.
        words: The names of the attributes that may be such places.
    """

    def __init__(self, model: nn.Module, state: PythonState, words: Container[str]) -> None:
        self._before: List[Tuple[Place, Any]] = []
        self._known: Set[int] = set()
        self._seen: Set[int] = set()
        for own in [each.__dict__ for each in model.modules()]:
            self._note(own, {name: value for name, value in plain_attributes(own).items() if name in words})
        for container in state.containers():
            self._note(container, _entries(container))

    def _note(self, own: Any, values: Mapping[Any, Any]) -> None:
        if id(own) in self._seen:
            return
        self._seen.add(id(own))
        for key, value in values.items():
            self._before.append((Place(own, key), value))
            self._known.update(map(id, tensors_in(value)))
            if type(value) in _FILLED:
                self._note(value, _entries(value))

    def places(self) -> List[Place]:
        """Return where there are others now."""
        found = []
        for place, before in self._before:
            try:
                value = place.read()
            except LookupError:
                continue
            # Of a list or a dictionary that has stayed the entries are places.
            stays = value is before and type(value) in _FILLED
            if not stays and any(id(tensor) not in self._known for tensor in tensors_in(value)):
                found.append(place)
        return found

    def put_back(self) -> None:
        """Put everything back."""
        for place, value in self._before:
            place.write(value)


def _entries(container: Any) -> Mapping[Any, Any]:
    return dict(container if type(container) is dict else enumerate(container))


def put(places: Sequence[Place], values: Sequence[Any]) -> None:
    """Put values into places, where they count for nothing when the next call comes, which writes there first."""
    for place, value in zip(places, values):
        for tensor in tensors_in(value):
            leave_behind(tensor)
        place.write(value)


def called_beside(places: Sequence[Place], call: Callable[[], Any]) -> Any:
    """Return what a call returns, and what it leaves in places if there are any, which are put back."""
    if not places:
        return call()
    before = [place.read() for place in places]
    try:
        return call(), [place.read() for place in places]
    finally:
        for place, value in zip(places, before):
            place.write(value)
