"""Python values in attributes of modules at one moment, which modules can have again for a while."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, Iterator, List, Sequence, Tuple

import torch

from ignite_ipu.program.guards.values import FIXED, FUNCTIONS, Same, is_left_behind

_MODE = "training"
_CONTAINERS = (dict, list, set, tuple)
_PLAIN = (*FIXED, *FUNCTIONS)
_ABSENT: List[Any] = []


class SavedAttributes:
    """The numbers, strings, functions and tensors in attributes of modules, at the time it is made.

    Plain containers of them count, too. Modes are left out, and tensors that calls leave for others. What is written
    into a tensor is not saved. It is part of no comparison: all are equal.
    """

    def __init__(self, modules: Sequence[Dict[str, Any]]) -> None:
        self._saved = [
            (own, {name: _saved(value) for name, value in own.items() if name != _MODE and _is_plain(value)})
            for own in modules
        ]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SavedAttributes)

    def __hash__(self) -> int:
        return 0

    def by_module(self) -> Dict[int, Dict[str, Any]]:
        """Return the values of each module, comparable, by the ids of their attributes."""
        return {id(own): saved for own, saved in self._saved}

    @contextlib.contextmanager
    def put(self) -> Iterator[None]:
        """Have attributes that differ as they were, in the `with` block."""
        changed: List[Tuple[Dict[str, Any], str, Any]] = []
        try:
            for own, saved in self._saved:
                for name, value in saved.items():
                    now = own.get(name, _ABSENT)
                    if now is not value and not (_is_plain(now) and _saved(now) == value):
                        changed.append((own, name, now))
                        own[name] = _given(value)
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
    if isinstance(value, torch.Tensor):
        return not is_left_behind(value)
    if type(value) not in _CONTAINERS:
        return False
    return not value or all(map(_is_plain, [*value, *value.values()] if isinstance(value, dict) else value))


def _saved(value: Any) -> Any:
    """Return a value that no later change reaches, with objects in place of tensors that are equal for the same one."""
    return Same(value) if isinstance(value, torch.Tensor) else _mapped(value, _saved)


def _given(value: Any) -> Any:
    """Return the value of which another is saved."""
    return value.value if type(value) is Same else _mapped(value, _given)


def _mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    if type(value) is dict:
        return {name: function(each) for name, each in value.items()}
    return type(value)(map(function, value)) if type(value) in _CONTAINERS else value
