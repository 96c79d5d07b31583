"""Places in traced code, as refusals name them: the function around a line, and the line that changes a value."""

from __future__ import annotations

import ast
import dis
import linecache
import re
from types import CodeType, FunctionType, ModuleType
from typing import Any, Container, Iterator, List, Optional, Sequence, Tuple

from torch import nn

from ignite_ipu.capabilities.traced import NO_FUNCTION, OF_COMPILER, STATE, Restriction
from ignite_ipu.program.forward.randomness import GLOBAL, name_of
from ignite_ipu.program.guards.names import Named
from ignite_ipu.program.guards.python_state import named_by
from ignite_ipu.program.user_code import Line, Owner, codes_in, current_line, owner_of

FileLine = Tuple[str, int]

_FILE = r"([^\s:](?:(?! at )[^\n:])*):(\d+)"
PLACE = re.compile(rf"(?:\b[Aa]t |^){_FILE}\b")
"""The file and the number of a line, at the beginning of a message or behind "at" in it."""
_BEGINNING = re.compile(rf"{_FILE}: ")

_STORES = frozenset(["STORE_ATTR", "STORE_GLOBAL", "STORE_DEREF", "DELETE_ATTR", "DELETE_GLOBAL"])
_LOADS = frozenset(["LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CONST"])
# Making an object is no change of one.
_MAKING = ("__init__", "__new__", "__post_init__")
# Refusals of the compiler that concern no operator of the device.
_OF_PYTHON = ("HOST_READ", "MOVE_TO_HOST", "DYNAMIC_SHAPE", "GRADIENT")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def refusal_at(restriction: Restriction, place: Optional[FileLine], otherwise: str, detail: str = "") -> str:
    """Return the text of a refusal of traced code, which begins with the line if there is one.

    Args:
        restriction: The restriction that the code breaks.
        place: File and line of the code.
        otherwise: Words for the code where no function is known.
        detail: A detail for brackets behind the sentence.
    """
    where = (place and function_at(*place)) or otherwise
    return ("" if place is None else f"{place[0]}:{place[1]}: ") + restriction.refusal(where, detail)


def refused_code(error: BaseException) -> Optional[str]:
    """Return the text of a refusal of code by PopTorch's compiler that Python could run; None for another error."""
    kind = kind_of(error)
    if kind not in _OF_PYTHON:
        return None
    place = next((place for place in named_places(error) if owner_of(place[0]) is not Owner.LIBRARY), None)
    return refusal_at(OF_COMPILER[kind], place, NO_FUNCTION)


def kind_of(error: BaseException) -> str:
    """Return the name of the kind of a refusal by PopTorch's compiler, "" for another error."""
    return str(getattr(getattr(error, "kind", None), "name", ""))


def named_places(error: BaseException) -> List[FileLine]:
    """Return the lines that the message of an error names."""
    return [(file, int(number)) for file, number in PLACE.findall(getattr(error, "message", str(error)))]


def split_place(text: str) -> Tuple[Optional[FileLine], str]:
    """Return the line that a refusal begins with, None for none, and the text behind it."""
    found = _BEGINNING.match(text)
    if found is None:
        return None, text
    return (found.group(1), int(found.group(2))), text[found.end() :]


def function_at(file: str, number: int) -> str:
    """Return the innermost function around a line, a method with its class: `Net.forward`; "" for none."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ""
    found, inner = "", 0
    for outer in ast.walk(tree):
        for node in ast.iter_child_nodes(outer):
            if isinstance(node, _FUNCTIONS) and inner < node.lineno <= number <= (node.end_lineno or node.lineno):
                found, inner = (
                    f"{outer.name}.{node.name}" if isinstance(outer, ast.ClassDef) else node.name,
                    node.lineno,
                )
    return found


def changing_place(named: Named, changed: Sequence[str]) -> Optional[FileLine]:
    """Return the first line that changes one of some values, as messages call them; None where no code shows it.

    Args:
        named: The code that was searched for values by their names.
        changed: The names of the values.
    """
    functions = [function for function in named.functions if function.__name__ not in _MAKING]
    # A forward makes objects of other classes than its own.
    functions += [function for function in named.functions if function.__name__ in _MAKING and _makes_objects(function)]
    generators = {name_of(each): each for each in GLOBAL}
    for name in changed:
        last = name.rpartition(".")[2]
        lines = (
            (line for function in functions for line in _draws(function, generators[name]))
            if name in generators
            else (line for uses in (_STORES, _LOADS) for each in functions for line in _uses(each, last, uses))
        )
        for line in lines:
            return line.place
    return None


def _makes_objects(function: FunctionType) -> bool:
    """Return whether a constructor is of a class of the module that is no `nn.Module`."""
    kind = function.__globals__.get(function.__qualname__.partition(".")[0])
    return isinstance(kind, type) and not issubclass(kind, nn.Module)


def _all_codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in codes_in(code):
        yield from _all_codes(inner)


def _uses(function: FunctionType, name: str, operations: Container[str]) -> Iterator[Line]:
    for code in _all_codes(function.__code__):
        for each in dis.get_instructions(code):
            if each.opname in operations and each.argval == name:
                yield Line((code, each.offset))


def _draws(function: FunctionType, generator: Any) -> Iterator[Line]:
    """Yield the lines that name the module of a generator, or one of its functions."""
    for code in _all_codes(function.__code__):
        path: Any = None
        for each in dis.get_instructions(code):
            if each.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                path = function.__globals__.get(each.argval)
            elif each.opname in ("LOAD_ATTR", "LOAD_METHOD") and isinstance(path, ModuleType):
                path = getattr(path, each.argval, None)
            elif each.opname != "CACHE":
                path = None
            if getattr(path, "__self__", None) is generator:
                yield Line((code, each.offset))


def changes_in_every_call(model: nn.Module, changed: Sequence[str]) -> str:
    """Return why a model cannot be compiled whose forward changes these values, with the line that does."""
    forward = f"The forward of {type(model).__qualname__}, called at {current_line()},"
    return refusal_at(STATE, changing_place(named_by(model), changed), forward, ", ".join(changed))
