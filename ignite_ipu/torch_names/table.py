"""The table of private names, and stand-ins for those that a version lacks."""

from __future__ import annotations

import importlib
from types import CodeType
from typing import Any, Callable, Dict, NoReturn, Optional, Tuple

__all__ = ["NAMES", "MissingNameError", "Name", "find"]

_NOTHING: Any = object()
_TITLES = {"torch": "PyTorch", "ignite": "Ignite", "accelerate": "accelerate"}

NAMES: Dict[str, Name] = {}
"""Every private name, by its path."""


class MissingNameError(RuntimeError):
    """The installed version of PyTorch, Ignite or accelerate lacks a private name that a feature needs."""


class Name:
    """A private name of another package.

    Args:
        path: Dotted path, beginning with the package.
        since: Oldest version of the package that is known to have the name.
        lost: Sentence on the features that do not work, or work in another way, without the name.
        until: First version that is known to lack the name.
        check: Returns whether the installed version has the name, where its path alone does not show it.
        fallback: Replaces the name where it is missing.
        inherited_by: Modules with classes that derive from the one with the name, and override or use it there.
    """

    def __init__(
        self,
        path: str,
        since: str,
        lost: str,
        *,
        until: Optional[str] = None,
        check: Optional[Callable[[], bool]] = None,
        fallback: Any = _NOTHING,
        inherited_by: Tuple[str, ...] = (),
    ) -> None:
        assert path not in NAMES, path
        self.path, self.since, self.lost, self.until = path, since, lost, until
        self._check, self._fallback, self.inherited_by = check, fallback, inherited_by
        NAMES[path] = self

    @property
    def package(self) -> str:
        """The package that has the name: `"torch"`, `"ignite"` or `"accelerate"`."""
        return self.path.partition(".")[0]

    @property
    def last(self) -> str:
        """The last part of the path, which is the attribute."""
        return self.path.rpartition(".")[2]

    @property
    def has_fallback(self) -> bool:
        return self._fallback is not _NOTHING

    def exists(self) -> bool:
        """Return whether the installed version has the name."""
        return self._check() if self._check is not None else look_up(self.path) is not _NOTHING

    def get(self) -> Any:
        """Return the object of that name, its fallback, or a stand-in that raises `MissingNameError` when used."""
        found = look_up(self.path)
        if found is not _NOTHING:
            return found
        return self._fallback if self.has_fallback else _StandIn(self)

    def missing(self) -> MissingNameError:
        """Return the error of a feature that needs the name."""
        package = importlib.import_module(self.package)
        return MissingNameError(
            f"{_TITLES[self.package]} {package.__version__} has no {self.path}, which this package knows from version "
            f"{self.since} on. {self.lost} Install a version that the README lists as tested."
        )


def find(path: str, since: str, lost: str, *, until: Optional[str] = None, fallback: Any = _NOTHING) -> Any:
    """Enter a name into the table and return its object, fallback or stand-in."""
    return Name(path, since, lost, until=until, fallback=fallback).get()


def attribute(path: str, since: str, lost: str, example: Callable[[], Any], *, until: Optional[str] = None) -> str:
    """Enter an attribute of objects such as `example()` into the table and return its name."""
    last = path.rpartition(".")[2]
    return Name(path, since, lost, until=until, check=lambda: hasattr(example(), last)).last


def word(
    path: str, since: str, lost: str, *, until: Optional[str] = None, check: Optional[Callable[[], bool]] = None
) -> str:
    """Enter a name into the table that is compared with others or replaced for a while, and return its last part."""
    return Name(path, since, lost, until=until, check=check, fallback=None).last


def inherited(path: str, since: str, lost: str, *by: str, check: Optional[Callable[[], bool]] = None) -> None:
    """Enter a name into the table that modules use in classes that derive from the one with the name."""
    Name(path, since, lost, check=check, inherited_by=by, fallback=None)


def code_of(path: str, since: str, lost: str) -> Optional[CodeType]:
    """Enter a Python function into the table and return its code, None where it is missing or has none."""
    code: Optional[CodeType] = getattr(find(path, since, lost, fallback=None), "__code__", None)
    return code


def look_up(path: str) -> Any:
    """Return the object at a dotted path, importing modules on the way; `_NOTHING` if there is none."""
    first, *rest = path.split(".")
    found, reached = importlib.import_module(first), first
    for part in rest:
        reached = f"{reached}.{part}"
        value = getattr(found, part, _NOTHING)
        if value is _NOTHING:
            try:
                value = importlib.import_module(reached)
            except ImportError:
                return _NOTHING
        found = value
    return found


class _StandIn:
    """Replaces a missing object: every use raises `MissingNameError`. A class may derive from it."""

    def __init__(self, name: Name) -> None:
        self._name = name

    def _raise(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise self._name.missing()

    __call__ = __enter__ = __exit__ = __get__ = __set__ = __iter__ = __contains__ = __bool__ = __len__ = _raise

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        self._raise()

    def __mro_entries__(self, bases: Tuple[Any, ...]) -> Tuple[type, ...]:
        return (type("Missing", (), {"__new__": self._raise}),)

    def __instancecheck__(self, value: Any) -> bool:
        self._raise()
