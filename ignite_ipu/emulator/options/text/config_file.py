"""Option files: one option call per line, read and checked, never executed.

PopTorch hands the text of such a file to `exec`. Here every line is parsed; what is not a call of options, or the
assignment of one, with literals, arithmetic on numbers, PopTorch's enum members, or PopTorch's stages, strategies and
locations made of these, is refused before any option changes.
"""

from __future__ import annotations

import ast
import enum
import functools
import operator
import os
from typing import Any, Callable, Dict, List, NoReturn, Optional, Sequence, Tuple

from ignite_ipu.emulator import enums
from ignite_ipu.emulator.options import strategies
from ignite_ipu.emulator.options.guarded import OptionsDict
from ignite_ipu.emulator.options.tensor_locations import TensorLocationSettings
from ignite_ipu.emulator.options.text.setters import find_setter

# What a file may construct, each with the methods that may be chained to it.
_CONSTRUCTORS: Dict[str, Tuple[Callable[..., Any], Tuple[str, ...]]] = {
    "Stage": (strategies.Stage, ("ipu",)),
    "Phase": (strategies.Phase, ()),
    "PipelinedExecution": (strategies.PipelinedExecution, ()),
    "ShardedExecution": (strategies.ShardedExecution, ()),
    "ParallelPhasedExecution": (
        strategies.ParallelPhasedExecution,
        ("useSeparateBackwardPhase", "sendTensorsOffChipAfterFwd"),
    ),
    "SerialPhasedExecution": (
        strategies.SerialPhasedExecution,
        ("useSeparateBackwardPhase", "setTensorsLiveness"),
    ),
    "TensorLocationSettings": (
        TensorLocationSettings,
        (
            "minElementsForOffChip",
            "minElementsForReplicatedTensorSharding",
            "useOnChipStorage",
            "useReplicatedTensorSharding",
            "useIOTilesToLoad",
            "useIOTilesToStore",
        ),
    ),
}

_PARTS = ("Training", "Precision", "Distributed", "TensorLocations", "Jit")
_ARITHMETIC: Dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}

_Value = Callable[[], Any]


class ConfigFileError(Exception):
    """A line of an option file is no option call; nothing of the file was applied."""


class UnknownOptionError(ConfigFileError, AttributeError):
    """A line of an option file calls an option that does not exist.

    PopTorch raises `AttributeError` for it, after applying the lines above.
    """


class UnknownNameError(ConfigFileError, NameError):
    """A line of an option file uses a name that means nothing there.

    PopTorch raises `NameError` for it, after applying the lines above.
    """


def apply_file(options: OptionsDict, path: str) -> None:
    """Make the option calls that the file at `path` lists.

    Empty lines and lines starting with `#` are skipped. What an option's own check raises passes through, and leaves
    the lines above applied.

    Raises:
        ConfigFileError: A line is no option call, or names an option that does not exist; no line was applied.
        FileNotFoundError: There is no file.
    """
    with open(path, encoding="utf-8") as file:
        lines = [line.strip() for line in file]
    calls = [
        _Line(os.path.basename(path), number, line).call(options)
        for number, line in enumerate(lines, start=1)
        if line and not line.startswith("#")
    ]
    for call in calls:
        call()


class _Line:
    """One line of a file and what is to be made of it."""

    def __init__(self, file: str, number: int, text: str) -> None:
        self._file = file
        self._number = number
        self._text = text

    def call(self, options: OptionsDict) -> _Value:
        """Return a function that does what this line says; nothing is done yet."""
        statement = self._parsed()
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            return self._assignment(options, statement.targets[0], self._value(statement.value))
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            return self._calls(options, statement.value)
        self._refuse("it is neither a call nor an assignment")

    def _calls(self, options: OptionsDict, call: ast.Call) -> _Value:
        """Read `options.a(...).b(...)`: every setter returns the options that it belongs to, for the next one."""
        chain = [call]
        path = _path_to_call(chain[0])
        while path is None or path[0] != "options":
            inner = _inner_call(chain[0])
            if inner is None:
                self._refuse("it calls something that is no option")
            chain.insert(0, inner)
            path = _path_to_call(inner)
        owner: Any = options
        steps: List[_Value] = []
        for each in chain:
            names = (_path_to_call(each) or [])[1:]
            if not names or owner is None:
                self._refuse("it calls what an option returned")
            try:
                setter = find_setter(owner, names)
            except AttributeError as error:
                raise UnknownOptionError(self._described(str(error))) from None
            owner = None if names == ["anchorTensor"] else getattr(setter, "__self__", None)  # that one returns nothing
            steps.append(functools.partial(_call, setter, *self._arguments(each)))
        return lambda: [step() for step in steps]

    def _assignment(self, options: OptionsDict, target: ast.expr, value: _Value) -> _Value:
        *path, name = _dotted(target) or [""]
        owners: Dict[Tuple[str, ...], Any] = {("options",): options}
        owners.update({("options", each): getattr(options, each) for each in _PARTS})
        owner = owners.get(tuple(path))
        if owner is None or not isinstance(target, ast.Attribute) or name.startswith("_"):
            self._refuse("it assigns to something that is no option")
        return lambda: setattr(owner, name, value())

    def _parsed(self) -> ast.stmt:
        try:
            module = ast.parse(f"options.{self._text}", filename=self._file)
        except SyntaxError as error:
            raise ConfigFileError(
                f"SyntaxError at line {self._number} of {self._file}: {error.msg}\n> options.{self._text}"
            ) from None
        except (ValueError, MemoryError, RecursionError) as error:
            # A null byte, or nesting deeper than Python's own parser goes.
            self._refuse(f"Python cannot read it ({error})")
        if len(module.body) != 1:
            raise UnknownNameError(self._described("it holds more than one statement, and only the first is an option"))
        return module.body[0]

    def _arguments(self, call: ast.Call) -> Tuple[List[_Value], Dict[str, _Value]]:
        positional = [self._value(each) for each in call.args]
        named: Dict[str, _Value] = {}
        for keyword in call.keywords:
            if keyword.arg is None:
                self._refuse("`**` is no literal")
            named[keyword.arg] = self._value(keyword.value)
        return positional, named

    def _value(self, node: ast.expr) -> _Value:
        """Return a function that gives the value of `node`; nothing is called before the whole file has been read."""
        if isinstance(node, ast.Call):
            return self._construction(node)
        if isinstance(node, ast.Attribute):
            member = self._member(node)
            return lambda: member
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            kind = {ast.List: list, ast.Tuple: tuple, ast.Set: set}[type(node)]
            parts = [self._value(each) for each in node.elts]
            return lambda: kind(part() for part in parts)
        if isinstance(node, ast.Dict):
            if None in node.keys:
                self._refuse("`**` is no literal")
            pairs = [(self._value(key), self._value(value)) for key, value in zip(node.keys, node.values) if key]
            return lambda: {key(): value() for key, value in pairs}
        if isinstance(node, ast.Name):
            raise UnknownNameError(self._described(f"`{node.id}` means nothing here"))
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            number = self._calculated(node)
            return lambda: number
        try:
            literal = ast.literal_eval(node)
        except (ValueError, TypeError, RecursionError):
            self._refuse(f"`{self._source(node)}` is neither a literal nor a poptorch enum member")
        return lambda: literal

    def _calculated(self, node: ast.expr) -> Any:
        """Return the value of a number, or of arithmetic on numbers."""
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            return _ARITHMETIC[type(node.op)](self._calculated(node.left), self._calculated(node.right))
        try:
            number = ast.literal_eval(node)
        except (ValueError, TypeError, RecursionError):
            number = None
        if not isinstance(number, (int, float)):
            self._refuse(f"`{self._source(node)}` is no number to calculate with")
        return number

    def _member(self, node: ast.Attribute) -> enum.Enum:
        path = _dotted(node) or []
        if path[:2] in (["poptorch", "enums"], ["poptorch", "options"]):
            path = ["poptorch", *path[2:]]
        if len(path) == 3 and path[0] == "poptorch":
            found = getattr(enums, path[1], None)
            if isinstance(found, type) and issubclass(found, enum.Enum) and path[2] in found.__members__:
                return found[path[2]]
        self._refuse(f"`{self._source(node)}` is neither a literal nor a poptorch enum member")

    def _construction(self, node: ast.Call) -> _Value:
        positional, named = self._arguments(node)
        if not isinstance(node.func, ast.Attribute):
            self._refuse(f"`{self._source(node.func)}` may not be called")
        name = node.func.attr
        if isinstance(node.func.value, ast.Call):
            # A method chained to something constructed, such as poptorch.Stage("a").ipu(1).
            target, methods = self._construction(node.func.value), self._methods(node.func.value)
            if name not in methods:
                self._refuse(f"`.{name}` may not be called")
            return lambda: getattr(target(), name)(
                *(each() for each in positional), **{key: each() for key, each in named.items()}
            )
        path = _dotted(node.func) or []
        if path not in (["poptorch", name], ["poptorch", "options", name]) or name not in _CONSTRUCTORS:
            self._refuse(f"`{self._source(node.func)}` may not be called")
        constructor = _CONSTRUCTORS[name][0]
        return lambda: constructor(*(each() for each in positional), **{key: each() for key, each in named.items()})

    def _methods(self, node: ast.Call) -> Sequence[str]:
        # The methods to be chained all return the object, so the innermost call tells what it is.
        while isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Call):
            node = node.func.value
        return _CONSTRUCTORS[node.func.attr][1] if isinstance(node.func, ast.Attribute) else ()

    def _source(self, node: ast.AST) -> str:
        return ast.get_source_segment(f"options.{self._text}", node) or type(node).__name__

    def _refuse(self, why: str) -> NoReturn:
        raise ConfigFileError(self._described(why))

    def _described(self, why: str) -> str:
        return (
            f"Error at line {self._number} of {self._file}: {why.rstrip('.')}. A line is one option call with literals "
            "or poptorch enum members, such as Training.gradientAccumulation(4); nothing was applied."
            f"\n> options.{self._text}"
        )


def _dotted(node: ast.expr) -> Optional[List[str]]:
    """Return the names of `a.b.c`, or None for any other expression."""
    names: List[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [*names, node.id][::-1] if isinstance(node, ast.Name) else None


def _path_to_call(call: ast.Call) -> Optional[List[str]]:
    """Return the names from `options`, or from the call before it, to what `call` calls; None for other expressions."""
    inner = _inner_call(call)
    if inner is None:
        return _dotted(call.func)
    names: List[str] = []
    node = call.func
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return ["", *reversed(names)]


def _inner_call(call: ast.Call) -> Optional[ast.Call]:
    """Return the call that `call` is chained to, None for the first of a chain."""
    node = call.func
    while isinstance(node, ast.Attribute):
        node = node.value
    return node if isinstance(node, ast.Call) else None


def _call(setter: Callable[..., Any], positional: List[_Value], named: Dict[str, _Value]) -> Any:
    return setter(*(each() for each in positional), **{name: each() for name, each in named.items()})
