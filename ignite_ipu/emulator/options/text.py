"""Options as text: files with one option call per line, and JSON objects; both read and checked, never executed.

PopTorch hands the text of such a file to `exec`. Here every line is parsed, and must be a call or an assignment of
options. Values are literals, arithmetic on numbers, PopTorch's enum members, and PopTorch's stages, strategies and
locations made of these. Any other line is refused before an option changes.
"""

from __future__ import annotations

import ast
import difflib
import enum
import functools
import json
import operator
import os
import re
from typing import Any, Callable, Dict, Iterator, List, NoReturn, Optional, Sequence, Tuple

from ignite_ipu.emulator import enums
from ignite_ipu.emulator.options import strategies
from ignite_ipu.emulator.options.guarded import OptionsDict
from ignite_ipu.emulator.options.parts import TensorLocationSettings

# Types that a file may construct.
_CONSTRUCTORS: Dict[str, Callable[..., Any]] = {
    kind.__name__: kind
    for kind in (
        *(strategies.Stage, strategies.Phase, strategies.PipelinedExecution, strategies.ShardedExecution),
        *(strategies.ParallelPhasedExecution, strategies.SerialPhasedExecution, TensorLocationSettings),
    )
}
GROUPS = ("Training", "Precision", "Distributed", "TensorLocations", "Jit", "_Popart")

# Public methods that set no option, or would read another text.
_NO_SETTERS = frozenset([*dir(OptionsDict), "clone", "defaultOutputMode", "from_json", "loadFromFile"])
_SEQUENCES: Dict[type, Callable[[Any], Any]] = {ast.List: list, ast.Tuple: tuple, ast.Set: set}
_ARITHMETIC: Dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}

_Step = Callable[[], Any]


class ConfigFileError(Exception):
    """A line of an option file is no option call; nothing of the file was applied."""


# PopTorch raises the second base of each, after applying the lines above.


class UnknownOptionError(ConfigFileError, AttributeError):
    """A line of an option file calls an option that does not exist."""


class UnknownNameError(ConfigFileError, NameError):
    """A line of an option file uses a name that means nothing there."""


def apply_file(options: OptionsDict, path: str) -> None:
    """Make the option calls that the file at `path` lists.

    Empty lines and lines starting with `#` are skipped. Exceptions of an option's own check pass through, and leave the
    lines above applied; a line that is no option call is found before any is.
    """
    steps: List[_Step] = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(map(str.strip, file), start=1):
            if line and not line.startswith("#"):
                steps += _Line(os.path.basename(path), number, line).steps(options)
    for step in steps:
        step()


def apply_json(options: OptionsDict, text: str) -> None:
    """Call the setter that each key of a JSON object names, with the key's value.

    A list is spread over the arguments; `"OutputMode.All"` becomes that member.
    """
    try:
        settings = json.loads(text)
    except RecursionError:
        raise ValueError("Options as JSON nest no deeper than a list in an object; this text does.") from None
    if not isinstance(settings, dict):
        raise ValueError(f'Options as JSON are one object, such as {{"deviceIterations": 4}}; got {text!r}.')
    calls = [
        functools.partial(
            _find_setter(options, path.split(".")), *map(_argument, value if isinstance(value, list) else [value])
        )
        for path, value in settings.items()
    ]
    for call in calls:
        call()


class _Line:
    """One line of a file and its meaning."""

    def __init__(self, file: str, number: int, text: str) -> None:
        self._file = file
        self._number = number
        self._text = text

    def steps(self, options: OptionsDict) -> List[_Step]:
        """Return the functions that apply this line, one after the other; nothing is applied yet."""
        try:
            statement = self._parsed()
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                return [self._assignment(options, statement.targets[0], self._value(statement.value))]
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
                return self._calls(options, statement.value)[1]
        except (ValueError, MemoryError, RecursionError) as error:
            # A null byte, or nesting deeper than Python's own parser goes.
            self._refuse(f"Python cannot read it ({error})")
        self._refuse("it is neither a call nor an assignment")

    def _calls(self, options: OptionsDict, call: ast.Call) -> Tuple[Any, List[_Step]]:
        """Read `options.a(...).b(...)`; every setter returns the options that it belongs to, for the next one."""
        base, names = _unwound(call.func)
        owner: Any = options
        steps: List[_Step] = []
        if isinstance(base, ast.Call):
            owner, steps = self._calls(options, base)
        elif not isinstance(base, ast.Name) or base.id != "options":
            self._refuse("it calls something that is no option")
        if not names or owner is None:
            self._refuse("it calls the result of an option")
        try:
            setter = _find_setter(owner, names)
        except AttributeError as error:
            raise UnknownOptionError(self._described(str(error))) from None
        positional, named = self._arguments(call)
        steps.append(functools.partial(setter, *positional, **named))
        # That one returns nothing.
        return None if names == ["anchorTensor"] else getattr(setter, "__self__", None), steps

    def _assignment(self, options: OptionsDict, target: ast.expr, value: Any) -> _Step:
        found = re.fullmatch(rf"options\.(?:({'|'.join(GROUPS[:-1])})\.)?([^\W_]\w*)", self._source(target))
        if found is None:
            self._refuse("it assigns to something that is no option")
        group, name = found.groups()
        return functools.partial(setattr, getattr(options, group) if group else options, name, value)

    def _parsed(self) -> ast.stmt:
        try:
            module = ast.parse(f"options.{self._text}", filename=self._file)
        except SyntaxError as error:
            raise ConfigFileError(
                f"SyntaxError at line {self._number} of {self._file}: {error.msg}\n> options.{self._text}"
            ) from None
        if len(module.body) != 1:
            raise UnknownNameError(self._described("it holds more than one statement, and only the first is an option"))
        return module.body[0]

    def _arguments(self, call: ast.Call) -> Tuple[List[Any], Dict[str, Any]]:
        if any(keyword.arg is None for keyword in call.keywords):
            self._refuse("`**` is no literal")
        named = {keyword.arg: self._value(keyword.value) for keyword in call.keywords if keyword.arg}
        return [self._value(each) for each in call.args], named

    def _value(self, node: ast.expr) -> Any:
        """Return the value of a literal, of a member of an enumeration, or of an allowed construction."""
        if isinstance(node, ast.Call):
            return self._constructed(node)
        if isinstance(node, ast.Attribute):
            return self._member(node)
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            return _SEQUENCES[type(node)]([self._value(each) for each in node.elts])
        if isinstance(node, ast.Dict):
            if None in node.keys:
                self._refuse("`**` is no literal")
            return {self._value(key): self._value(value) for key, value in zip(node.keys, node.values) if key}
        if isinstance(node, ast.Name):
            raise UnknownNameError(self._described(f"`{node.id}` means nothing here"))
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            return _ARITHMETIC[type(node.op)](self._number_of(node.left), self._number_of(node.right))
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError):
            self._refuse(f"`{self._source(node)}` is neither a literal nor a poptorch enum member")

    def _number_of(self, node: ast.expr) -> Any:
        number = self._value(node)
        if type(number) not in (int, float, bool):
            self._refuse(f"`{self._source(node)}` is no number to calculate with")
        return number

    def _member(self, node: ast.Attribute) -> enum.Enum:
        found = re.fullmatch(r"poptorch(?:\.enums|\.options)?\.(\w+)\.(\w+)", self._source(node))
        member = _find_member(*found.groups()) if found else None
        if member is None:
            self._refuse(f"`{self._source(node)}` is neither a literal nor a poptorch enum member")
        return member

    def _constructed(self, node: ast.Call) -> Any:
        base, names = _unwound(node.func)
        positional, named = self._arguments(node)
        if isinstance(base, ast.Call) and len(names) == 1:
            # A method chained to something constructed, such as poptorch.Stage("a").ipu(1).
            target = self._constructed(base)
            method = None if names[0].startswith("_") else getattr(type(target), names[0], None)
            if not callable(method) or method(target, *positional, **named) is not target:
                self._refuse(f"`.{names[0]}` may not be called")
            return target
        found = re.fullmatch(r"poptorch(?:\.options)?\.(\w+)", self._source(node.func))
        if found is None or found[1] not in _CONSTRUCTORS:
            self._refuse(f"`{self._source(node.func)}` may not be called")
        return _CONSTRUCTORS[found[1]](*positional, **named)

    def _source(self, node: ast.AST) -> str:
        return ast.get_source_segment(f"options.{self._text}", node) or type(node).__name__

    def _refuse(self, why: str) -> NoReturn:
        raise ConfigFileError(self._described(why))

    def _described(self, why: str) -> str:
        sentence = why if why.endswith("?") else f"{why.rstrip('.')}."
        return (
            f"Error at line {self._number} of {self._file}: {sentence} A line is one option call with literals or "
            "poptorch enum members, such as Training.gradientAccumulation(4); nothing was applied."
            f"\n> options.{self._text}"
        )


def _unwound(node: ast.expr) -> Tuple[ast.expr, List[str]]:
    """Return the owner of the attributes `.a.b.c`, and these names."""
    names: List[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return node, names


def _argument(value: Any) -> Any:
    if not isinstance(value, str) or value.count(".") != 1:
        return value
    member = _find_member(*value.split("."))
    return value if member is None else member


def _find_setter(options: OptionsDict, path: Sequence[str]) -> Callable[..., Any]:
    """Return the method of `options` that `path` names, such as `["Training", "gradientAccumulation"]`."""
    *groups, name = path
    owner: Any = getattr(options, groups[0]) if len(groups) == 1 and groups[0] in GROUPS else options
    # The method for back-end settings has the same name as that of guarded dictionaries.
    is_setter = (name not in _NO_SETTERS or groups == ["_Popart"]) and not name.startswith("_")
    if not is_setter or (groups and owner is options) or not callable(getattr(type(owner), name, None)):
        raise AttributeError(
            f"Invalid attribute {'.'.join(path)}: no option of poptorch.Options is set by a method of that name."
            f"{_meant(options, path)}"
        )
    setter: Callable[..., Any] = getattr(owner, name)
    return setter


def _setters(options: OptionsDict) -> Iterator[str]:
    """Yield the paths of all setters, such as `Training.gradientAccumulation`."""
    for group in ("", *GROUPS):
        owner = getattr(options, group) if group else options
        names = (name for name in dir(type(owner)) if name[:1].islower() and callable(getattr(type(owner), name)))
        known = (name for name in names if name not in _NO_SETTERS or (group == "_Popart" and name == "set"))
        yield from (f"{group}.{name}" if group else name for name in known)


def _meant(options: OptionsDict, path: Sequence[str]) -> str:
    """Return a sentence with the setter that a misspelt path may mean: the same name elsewhere, or one like it."""
    known = {setter.lower(): setter for setter in _setters(options)}
    elsewhere = [setter for low, setter in known.items() if low.rpartition(".")[2] == path[-1].lower()]
    last = {setter.rpartition(".")[2].lower(): setter for setter in known.values()}
    near = difflib.get_close_matches(".".join(path).lower(), known, n=1, cutoff=0.7)
    near_last = difflib.get_close_matches(path[-1].lower(), last, n=1, cutoff=0.7)
    found = [*elsewhere, *(known[each] for each in near), *(last[each] for each in near_last)]
    return f" Did you mean {found[0]}?" if found else ""


def _find_member(kind: str, member: str) -> Optional[enum.Enum]:
    found = getattr(enums, kind, None)
    if not isinstance(found, type) or not issubclass(found, enum.Enum):
        return None
    return found.__members__.get(member)
