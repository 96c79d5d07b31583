"""A dictionary of named values whose names and types are fixed, and which can be frozen."""

from __future__ import annotations

import copy
import enum
from typing import Any, Dict, Optional, Type, TypeVar

_Self = TypeVar("_Self", bound="Freezable")
_Options = TypeVar("_Options", bound="OptionsDict")
_Value = TypeVar("_Value")
# Values that have no parts to copy.
_PLAIN = (bool, int, float, str, type(None), enum.Enum)


def checked(setter: str, value: Any, kind: Type[_Value]) -> _Value:
    """Return the argument of a setter, and raise `AssertionError` if it is of another kind."""
    if isinstance(value, kind):
        return value
    name = f"poptorch.{kind.__name__}" if issubclass(kind, enum.Enum) else kind.__name__
    raise AssertionError(f"{setter} takes {'an' if name[0] in 'aeiou' else 'a'} {name}, got {value!r}.")


class Freezable:
    """Options that models and data loaders freeze; a deep copy is not frozen."""

    _is_frozen: bool

    def checkIsFrozen(self, option: Optional[str] = None) -> None:
        """Raise `AttributeError` if the options may no longer change: a model or a data loader was given them."""
        if self._is_frozen:
            what = f" ({option})" if option else ""
            raise AttributeError(
                f"Can't modify frozen Options{what}: a model or a DataLoader uses them. Change a clone() of them "
                "instead."
            )

    def _freeze(self) -> None:
        self._is_frozen = True

    def __deepcopy__(self: _Self, memory: Dict[int, Any]) -> _Self:
        duplicate = memory[id(self)] = type(self).__new__(type(self))
        duplicate.__dict__.update({name: _copied(value, memory) for name, value in self.__dict__.items()})
        duplicate._is_frozen = False
        return duplicate


def _copied(value: Any, memory: Dict[int, Any]) -> Any:
    """Return a deep copy, without a search through plain values, which most options are.

    Each option has dictionaries and lists of its own.
    """
    kind = type(value)
    if isinstance(value, _PLAIN):
        return value
    if kind is list:
        return [_copied(each, memory) for each in value]
    if kind is dict:
        return {name: each if isinstance(each, _PLAIN) else _copied(each, memory) for name, each in value.items()}
    return copy.deepcopy(value, memory)


class OptionsDict(Freezable):
    """Named values, read as attributes and changed through checked setters.

    A value may only be replaced by an instance of the type of the value it replaces. So a `bool` passes where an `int`
    is stored, and from then on only a `bool` does.
    """

    _values: Dict[str, Any]

    def __init__(self, **default_values: Any) -> None:
        self._declare(_values=dict(default_values), _is_frozen=False)

    def _declare(self, **private: Any) -> None:
        """Create private attributes, which plain assignment may only change."""
        self.__dict__.update(private)

    def set(self, **kwargs: Any) -> None:
        """Change values that exist to others of their types.

        Raises:
            AttributeError: The options are frozen.
            AssertionError: A name does not exist, or its value has another type.
        """
        for option, value in kwargs.items():
            self.checkIsFrozen(option)
            expected = type(self(option))
            if not isinstance(value, expected):
                raise AssertionError(
                    f"Unexpected type {type(value).__name__} of {value!r} for option {option}: "
                    f"expected {expected.__name__}."
                )
            self._values[option] = value

    def createOrSet(self, **kwargs: Any) -> None:
        """Create the names that do not exist yet, and change the others as `set` does."""
        for option, value in kwargs.items():
            self.checkIsFrozen(option)
            if option in self._values:
                self.set(**{option: value})
            else:
                self._values[option] = value

    def _with(self: _Options, **values: Any) -> _Options:
        """Create or set values; every setter returns its owner."""
        self.createOrSet(**values)
        return self

    def exists(self, option: str) -> bool:
        """Return whether a value of that name exists."""
        return option in self._values

    def deleteIfExists(self, option: str) -> None:
        """Remove a name if it exists, frozen or not."""
        self._values.pop(option, None)

    def update(self, other: Dict[str, Any]) -> Dict[str, Any]:
        """Add the values to `other`, which has none of their names, and return it.

        Raises:
            AssertionError: A name is in both.
        """
        common = sorted(set(other) & set(self._values))
        if common:
            raise AssertionError(f"Can't merge the options: they have some keys in common: {common}.")
        other.update(self._values)
        return other

    def toDict(self) -> Dict[str, Any]:
        """Return the values as a dictionary."""
        return self.update({})

    def __call__(self, option: str) -> Any:
        if option not in self._values:
            raise AssertionError(f"Invalid option {option}, valid options are {sorted(self._values)}.")
        return self._values[option]

    def __getattr__(self, option: str) -> Any:
        # Reached only for missing attributes; private names also come here while an object is being unpickled.
        if option.startswith("_"):
            raise AttributeError(f"Invalid private attribute {option} of {type(self).__name__}.")
        if option not in self._values:
            raise AttributeError(
                f"Invalid attribute {option} of {type(self).__name__}: its values are {sorted(self._values)}."
            )
        return self._values[option]

    def __setattr__(self, option: str, value: Any) -> None:
        if not option.startswith("_"):
            self.set(**{option: value})
        elif option in self.__dict__:
            self.__dict__[option] = value
        else:
            raise AttributeError(f"Invalid private attribute {option} of {type(self).__name__}.")

    def __getstate__(self) -> Dict[str, Any]:
        return {**self.__dict__, "_values": dict(self._values)}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        self._declare(**state)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._values.items())})"
