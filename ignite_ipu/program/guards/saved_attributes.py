"""Python values in attributes of modules at one moment, which modules can have again for a while."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterator, List, Sequence, Tuple

from ignite_ipu.program.guards.values import FIXED, FUNCTIONS

_MODE = "training"
_CONTAINERS = (dict, list, set, tuple)
_PLAIN = (*FIXED, *FUNCTIONS)
_ABSENT: List[Any] = []


class SavedAttributes:
    """The numbers, strings, functions and plain containers of them in attributes of modules, at the time it is made.

    Modes and tensors are left out. It is part of no comparison: all are equal.
    """

    def __init__(self, modules: Sequence[Dict[str, Any]]) -> None:
        self._saved = [
            (own, {name: _copied(value) for name, value in own.items() if name != _MODE and _is_plain(value)})
            for own in modules
        ]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SavedAttributes)

    def __hash__(self) -> int:
        return 0

    def by_module(self) -> Dict[int, Dict[str, Any]]:
        """Return the values of each module, by the ids of their attributes."""
        return {id(own): saved for own, saved in self._saved}

    @contextlib.contextmanager
    def put(self) -> Iterator[None]:
        """Have attributes that differ as they were, in the `with` block."""
        changed: List[Tuple[Dict[str, Any], str, Any]] = []
        try:
            for own, saved in self._saved:
                for name, value in saved.items():
                    now = own.get(name, _ABSENT)
                    if now is not value and (type(now) is not type(value) or now != value):
                        changed.append((own, name, now))
                        own[name] = _copied(value)
            yield
        finally:
            for own, name, now in reversed(changed):
                if now is _ABSENT:
                    own.pop(name, None)
                else:
                    own[name] = now


def _is_plain(value: Any) -> bool:
    if isinstance(value, _PLAIN):
        return True
    if type(value) not in _CONTAINERS:
        return False
    return not value or all(map(_is_plain, [*value, *value.values()] if isinstance(value, dict) else value))


def _copied(value: Any) -> Any:
    if type(value) is dict:
        return {name: _copied(each) for name, each in value.items()}
    return type(value)(map(_copied, value)) if type(value) in _CONTAINERS else value
