"""What PopTorch 3.3 compiles: the one table, read from `operators.json` beside this file.

The table names functions of PyTorch's Python API, and kinds of operators that these arrive as with PyTorch 2.0.1. Its
parts:

- `compiles`: names by group; `layers`: the layers of `torch.nn` that do not, all others do.
- `refused`: kinds without an implementation, with the functions that are made of them. They fail when the model is
  compiled, those of `untraceable` at the call. `instead` is the way out.
- `random`: operators whose result is no constant whatever they are given.
- `arguments`: arguments that are refused (`Restriction`), likely to be, or read otherwise than by PyTorch.
- `values`: what is computed otherwise for some values, which no call shows.
- `signatures`: the order of the arguments of the names in there.
"""

from __future__ import annotations

import dataclasses
import json
import os
from functools import lru_cache
from typing import Any, Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple

_PYTHON_OPERATORS = {
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "invert": "bitwise_not",
    "truediv": "div",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "get": "getattr",
}
_BINARY = {"add", "sub", "mul", "div", "pow", "matmul", "lshift", "rshift"}
_PREFIXES = ("torch.nn.functional.", "torch.nn.", "torch.Tensor.", "torch.", "Tensor.", "nn.", "F.", "aten::")
_WRITTEN_OUT = {"linalg.": "linalg_", "special.": "special_", "fft.": "fft_", "functional.": "", "utils.": "_"}
_MODULES = {"nn.": "torch.nn.", "F.": "torch.nn.functional."}


@dataclasses.dataclass(frozen=True)
class Restriction:
    """A use of an operator that PopTorch refuses, or computes otherwise than PyTorch.

    Attributes:
        of: The functions and layers it is about.
        says: What is wrong.
        instead: The way out; empty where there is none, and nothing to do.
        argument: The names of the argument that decides; empty where all do.
        when: For which of its values: a word ("given", "missing", "true", "false", "always"), or a mapping with the
            numbers that it may not exceed ("above") or the values that are ("in"), or are not ("not in"), concerned.
        rule: The name of a rule about tensors that must hold, too.
        likely: Whether it is read from PopTorch's sources alone, and not shown by its tests.
        replaced, becomes: Whether and by what the argument is replaced before the operator computes.
        loss: Whether it only matters for the loss that is differentiated.
    """

    of: Tuple[str, ...]
    says: str
    instead: str = ""
    argument: Tuple[str, ...] = ()
    when: Any = None
    rule: str = ""
    likely: bool = False
    replaced: bool = False
    becomes: Any = None
    loss: bool = False

    @property
    def refused(self) -> bool:
        """Whether the model does not compile with it, as far as it is known."""
        return not (self.likely or self.replaced)

    def concerns(self, value: Any) -> bool:
        """Tell whether a value of the argument is concerned; None stands for one that is not given."""
        value = list(value) if isinstance(value, tuple) else value
        if isinstance(self.when, Mapping):
            ((how, limit),) = self.when.items()
            if how == "above":
                numbers = value if isinstance(value, list) else [value]
                return any(isinstance(number, (int, float)) and number > limit for number in numbers)
            return (value in limit) is (how == "in")
        return {
            None: True,
            "always": True,
            "given": value is not None and value is not False,
            "missing": value is None,
            "true": value is True,
            "false": value is False,
        }[self.when]


@lru_cache(maxsize=None)
def _data() -> Dict[str, Any]:
    with open(os.path.join(os.path.dirname(__file__), "operators.json"), encoding="utf-8") as file:
        data: Dict[str, Any] = json.load(file)
    return data


def _words(lines: Sequence[str]) -> Tuple[str, ...]:
    return tuple(" ".join(lines).split())


@lru_cache(maxsize=None)
def groups() -> Dict[str, Tuple[str, ...]]:
    """Return the names of what compiles, by group."""
    return {group: _words(lines) for group, lines in _data()["compiles"].items()}


@lru_cache(maxsize=None)
def kinds() -> Dict[str, Tuple[str, ...]]:
    """Return the kinds without an implementation, each with the functions that are made of it."""
    return {kind: _words([names]) for kind, names in _data()["refused"].items()}


@lru_cache(maxsize=None)
def untraceable() -> FrozenSet[str]:
    """Return the kinds that PyTorch 2.0 cannot tell the result of, so that they fail at the call."""
    return frozenset(_words(_data()["untraceable"]))


@lru_cache(maxsize=None)
def layers() -> Dict[str, str]:
    """Return the layers that do not compile, each with the kind that it fails for; it may be empty."""
    return {f"torch.nn.{name}": kind for name, kind in _data()["layers"].items()}


def values() -> Dict[Tuple[str, ...], str]:
    """Return what operators compute otherwise than PyTorch for some values."""
    return {_words([names]): text for names, text in _data()["values"].items()}


def is_random(name: str) -> bool:
    """Tell whether an operator draws numbers on the device."""
    return canonical(name) in _random()


def instead(kind: str) -> str:
    """Return what to use instead of a kind that does not compile; empty where nothing is known."""
    return str(_data()["instead"].get(kind, ""))


@lru_cache(maxsize=None)
def compiles(name: str) -> bool:
    """Tell whether the table has an operator among those that compile."""
    return canonical(name) in _compiled() and name not in _refused()


@lru_cache(maxsize=None)
def refused(name: str) -> Optional[str]:
    """Return the kind because of which an operator does not compile; None where the table does not say so."""
    found = _refused().get(name)
    return found if found is not None else _refused().get(canonical(name))


@lru_cache(maxsize=None)
def restrictions() -> Tuple[Restriction, ...]:
    """Return all restrictions, in the order of the table."""
    return tuple(
        Restriction(
            **{
                **row,
                "of": _words([row["of"]]),
                "argument": _words([row.get("argument", "")]),
                "replaced": "becomes" in row,
            }
        )
        for row in _data()["arguments"]
    )


def restricted(name: str) -> Sequence[Restriction]:
    """Return the restrictions of an operator, whose name may be a kernel's."""
    return _by_plain_name().get(canonical(name), ())


def restrictions_of(name: str) -> Sequence[Restriction]:
    """Return the restrictions of a function or layer by its full name, such as `torch.nn.LSTM`."""
    return _by_full_name().get(name, ())


def positions(name: str) -> Dict[str, int]:
    """Return the positions of the arguments of an operator, by its plain or full name."""
    return _positions().get(name) or _positions().get(canonical(name), {})


@lru_cache(maxsize=None)
def canonical(name: str) -> str:
    """Return the name of an operator without the marks of in-place and Python operators."""
    if name.startswith("__") and name.endswith("__"):
        name = name[2:-2]
        if name[:1] in "ri" and (name[1:] in _PYTHON_OPERATORS or name[1:] in _BINARY):
            name = ("r" if name == "rsub" else "") + name[1:]
        return _PYTHON_OPERATORS.get(name, name)
    return name[:-1] if name.endswith("_") and name != "_" else name


def undecorated(name: str) -> str:
    """Return the name by which a kernel would be called for a function's dotted name."""
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            name = name[len(prefix) :]
            break
    for prefix, inside in _WRITTEN_OUT.items():
        if name.startswith(prefix):
            return inside + name[len(prefix) :]
    return name


def full_name(name: str) -> str:
    """Return the importable name for one of the table's, such as `F.pad`."""
    for short, full in _MODULES.items():
        if name.startswith(short):
            return full + name[len(short) :]
    return name


@lru_cache(maxsize=None)
def _compiled() -> FrozenSet[str]:
    return frozenset(canonical(name) for names in groups().values() for name in names)


@lru_cache(maxsize=None)
def _random() -> FrozenSet[str]:
    return frozenset(_words([_data()["random"]]))


@lru_cache(maxsize=None)
def _refused() -> Dict[str, str]:
    found = {name: kind for kind, names in kinds().items() for name in names}
    return {**found, **{kind: kind for kind in kinds()}}


@lru_cache(maxsize=None)
def _by_plain_name() -> Dict[str, List[Restriction]]:
    found: Dict[str, List[Restriction]] = {}
    for restriction in restrictions():
        for name in restriction.of:
            if not name.startswith("nn."):
                found.setdefault(canonical(undecorated(name)), []).append(restriction)
    return found


@lru_cache(maxsize=None)
def _by_full_name() -> Dict[str, List[Restriction]]:
    found: Dict[str, List[Restriction]] = {}
    for restriction in restrictions():
        for name in restriction.of:
            found.setdefault(full_name(name), []).append(restriction)
    return found


@lru_cache(maxsize=None)
def _positions() -> Dict[str, Dict[str, int]]:
    found: Dict[str, Dict[str, int]] = {}
    for names, arguments in _data()["signatures"].items():
        order = {argument: position for position, argument in enumerate(arguments.split())}
        for name in names.split():
            found[full_name(name)] = order
            if not name.startswith("nn."):
                found[canonical(undecorated(name))] = order
    return found
