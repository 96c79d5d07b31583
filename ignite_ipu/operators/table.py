"""Table of the operators that PopTorch 3.3 compiles, read from `operators.json` beside this file.

The table names functions of PyTorch's Python API, and kinds of operators that these arrive as with PyTorch 2.0.1. Its
parts:

- `compiles`: names by group; `layers`: the layers of `torch.nn` that do not, all others do.
- `refused`: kinds without an implementation, with the functions that are made of them. They fail when the model is
  compiled, those of `untraceable` at the call. `instead` is the way out.
- `random`: operators whose result is no constant for any arguments.
- `arguments`: arguments that are refused (`Restriction`), likely to be, or read otherwise than by PyTorch.
- `values`: operators whose result differs for some values, which no call shows.
- `signatures`: the order of the arguments of the names in there.
"""

from __future__ import annotations

import dataclasses
import json
import os
from functools import lru_cache
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from ignite_ipu.operators.words import words

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

    `when` selects the values of the argument. It is a word ("given", "missing", "true", "false", "always"), or a
    mapping: with the number that they exceed ("above") or fall short of ("below"), or with the values that are ("in"),
    or are not ("not in"), concerned.
    """

    of: Tuple[str, ...]  # functions and layers
    says: str
    instead: str = ""  # the way out; empty where there is none, and nothing to do
    argument: Tuple[str, ...] = ()  # the names of the argument that decides; empty where all do
    when: Any = None
    rule: str = ""  # the name of a rule about tensors that must hold, too
    likely: bool = False  # whether it is read from PopTorch's sources alone, and not shown by its tests
    replaced: bool = False  # whether `becomes` takes the argument's place before the operator computes
    becomes: Any = None
    breaks: str = "ARGUMENT"  # the restriction of traced code that it breaks, as `capabilities.traced` names it
    loss: bool = False  # whether it only matters for the loss that is differentiated

    @property
    def refused(self) -> bool:
        """True if the model is known not to compile with it."""
        return not (self.likely or self.replaced)

    def concerns(self, value: Any) -> bool:
        """Return whether a value of the argument is concerned; None stands for one that is not given."""
        if self.when is None:
            return True
        value = list(value) if isinstance(value, tuple) else value
        if isinstance(self.when, Mapping):
            ((how, limit),) = self.when.items()
            if how in ("above", "below"):
                numbers = [
                    each for each in (value if isinstance(value, list) else [value]) if isinstance(each, (int, float))
                ]
                return any(number > limit if how == "above" else number < limit for number in numbers)
            return (value in limit) is (how == "in")
        return {
            "always": True,
            "given": value is not None and value is not False,
            "missing": value is None,
            "true": value is True,
            "false": value is False,
        }[self.when]


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


with open(os.path.join(os.path.dirname(__file__), "operators.json"), encoding="utf-8") as file:
    _DATA: Dict[str, Any] = json.load(file)

GROUPS = {group: words(*lines) for group, lines in _DATA["compiles"].items()}
KINDS = {kind: words(names) for kind, names in _DATA["refused"].items()}
UNTRACEABLE = frozenset(words(*_DATA["untraceable"]))  # PyTorch 2.0 cannot tell their result
# Layers that do not compile, each with the kind that it fails for; it may be empty.
LAYERS: Dict[str, str] = {f"torch.nn.{name}": kind for name, kind in _DATA["layers"].items()}
VALUES: Dict[Tuple[str, ...], str] = {words(names): text for names, text in _DATA["values"].items()}
RESTRICTIONS = tuple(
    Restriction(**{**row, **{key: words(row.get(key, "")) for key in ("of", "argument")}, "replaced": "becomes" in row})
    for row in _DATA["arguments"]
)

_COMPILED = frozenset(canonical(name) for names in GROUPS.values() for name in names)
_RANDOM = frozenset(words(_DATA["random"]))
_REFUSED = {**{name: kind for kind, names in KINDS.items() for name in names}, **{kind: kind for kind in KINDS}}
_BY_NAME: Dict[str, List[Restriction]] = {}
_POSITIONS: Dict[str, Dict[str, int]] = {}


def _keys(name: str) -> Set[str]:
    """Return the keys of one of the table's names: the full name and, unless it is a layer's, a kernel's."""
    return {full_name(name)} if name.startswith("nn.") else {full_name(name), canonical(undecorated(name))}


for _each in RESTRICTIONS:
    for _key in [key for name in _each.of for key in _keys(name)]:
        _BY_NAME.setdefault(_key, []).append(_each)

for _names, _arguments in _DATA["signatures"].items():
    _order = {argument: position for position, argument in enumerate(_arguments.split())}
    _POSITIONS.update((key, _order) for name in _names.split() for key in _keys(name))


def is_random(name: str) -> bool:
    """Return whether an operator draws numbers on the device."""
    return canonical(name) in _RANDOM


def instead(kind: str) -> str:
    """Return the replacement for a kind that does not compile; empty if none is known."""
    return str(_DATA["instead"].get(kind, ""))


def compiles(name: str) -> bool:
    """Return whether the table has an operator among those that compile."""
    return canonical(name) in _COMPILED and name not in _REFUSED


def refused(name: str) -> Optional[str]:
    """Return the kind because of which an operator does not compile, or None if the table does not refuse it."""
    return _REFUSED.get(name, _REFUSED.get(canonical(name)))


def restricted(name: str) -> Sequence[Restriction]:
    """Return the restrictions of an operator, whose name may be a kernel's."""
    return _BY_NAME.get(canonical(name), ())


def restrictions_of(name: str) -> Sequence[Restriction]:
    """Return the restrictions of a function or layer by its full name, such as `torch.nn.LSTM`."""
    return _BY_NAME.get(name, ()) if "." in name else ()


def positions(name: str) -> Dict[str, int]:
    """Return the positions of the arguments of an operator, by its plain or full name."""
    return _POSITIONS.get(name) or _POSITIONS.get(canonical(name), {})
