"""Options of the command line that a file adds to parsers of `argparse`, with the values that argparse gives them."""

from __future__ import annotations

import argparse
import ast
from functools import cached_property
from typing import Any, Callable, Dict, Iterable, List, NoReturn, Optional, Sequence

from ignite_ipu.errors import UserError
from ignite_ipu.migration.analysis.names import argument, constant, has_hidden_arguments
from ignite_ipu.migration.analysis.parsed_file import ParsedFile

Literals = Callable[[ast.expr], Iterable[object]]

_KINDS: Dict[Optional[str], Any] = {"str": str, "int": int, "float": float}
_PLAIN = ("action", "default", "nargs", "const", "dest", "required")
_OTHERS = ("help", "metavar", "choices")


class Options:
    """The options that a file adds to its parsers."""

    def __init__(self, file: ParsedFile) -> None:
        self._file = file

    def value(self, name: str, arguments: Sequence[str], literals: Literals) -> Optional[ast.expr]:
        """Return the value of an option for some arguments, None if the file does not show it.

        Args:
            name: The attribute of the parsed arguments.
            arguments: The arguments.
            literals: Returns the literals that an expression may have as its value.
        """
        added = self._added.get(name, [])
        if len(added) != 1 or self._has_other_defaults:
            return None
        settings = {each.arg or "": self._setting(each.arg, each.value, literals) for each in added[0].keywords}
        if ... in settings.values() or "" in settings:
            return None
        given = {each: value for each, value in settings.items() if each not in _OTHERS}
        parser = _Parser(add_help=False, allow_abbrev=False)
        try:
            parser.add_argument(*_flags(added[0]), **given)
            parsed, _ = parser.parse_known_args(arguments)
        except (UserError, TypeError, ValueError, argparse.ArgumentError):
            return None
        value = getattr(parsed, name)
        return ast.Constant(value=value) if isinstance(value, (str, int, float, type(None))) else None

    @cached_property
    def _has_other_defaults(self) -> bool:
        """True if parsers have defaults that no option shows."""
        parsers = self._file.calls("argparse.ArgumentParser")
        given = any(argument(call, "argument_default") is not None or has_hidden_arguments(call) for call, _ in parsers)
        return given or any(True for _ in self._file.method_calls("set_defaults"))

    @cached_property
    def _added(self) -> Dict[str, List[ast.Call]]:
        """The calls that add each option, by the name of its attribute."""
        found: Dict[str, List[ast.Call]] = {}
        for call, _ in self._file.method_calls("add_argument"):
            flags = _flags(call)
            if flags:
                long = next((flag for flag in flags if flag.startswith("--")), flags[0])
                dest = [constant(each.value) for each in call.keywords if each.arg == "dest"]
                name = dest[0] if dest else long.lstrip("-").replace("-", "_")
                found.setdefault(str(name), []).append(call)
        return found

    def _setting(self, name: Optional[str], value: ast.expr, literals: Literals) -> Any:
        """Return the value of an argument of `add_argument`, Ellipsis for an unknown one."""
        if name == "type":
            return _KINDS.get(self._file.names.resolve(value), ...)
        if name == "action" and self._file.names.resolve(value) == "argparse.BooleanOptionalAction":
            return getattr(argparse, "BooleanOptionalAction", ...)
        if name in _PLAIN:
            found = list(literals(value))
            return found[0] if len(found) == 1 else ...
        return None if name in _OTHERS else ...


def _flags(call: ast.Call) -> List[str]:
    values = [constant(each) for each in call.args]
    return [str(each) for each in values] if all(isinstance(each, str) for each in values) else []


class _Parser(argparse.ArgumentParser):
    """A parser that raises its errors."""

    def error(self, message: str) -> NoReturn:
        raise UserError(message)
