"""Arguments that choose a precision: `amp_mode` and `scaler` of factories, `enabled` of autocast and GradScaler."""

from __future__ import annotations

import ast
from typing import Dict, Iterator, NamedTuple, Optional, Set, Tuple

from ignite_ipu.migration.analysis.names import argument, constant, dotted, has_hidden_arguments
from ignite_ipu.migration.analysis.operators import literals_of
from ignite_ipu.migration.analysis.parsed_file import ParsedFile


class _Meaning(NamedTuple):
    """An argument's place in both factories, the values that an IPU has, and how they are written down."""

    positions: Dict[str, int]
    values: Tuple[object, ...]
    written: str


_MEANINGS: Dict[str, _Meaning] = {
    "amp_mode": _Meaning({"trainer": 9, "evaluator": 8}, (None, "amp"), 'None and "amp"'),
    "scaler": _Meaning({"trainer": 10}, (None, False, True), "False and True, which scales automatically,"),
}


def refused_precision(file: ParsedFile, call: ast.Call, factory: str) -> Iterator[Tuple[ast.expr, str]]:
    """Find the arguments of a factory's call that an IPU cannot honour; others are decided when it is called.

    Yields each argument's value, and the problem with it.
    """
    name = factory.rsplit(".", 1)[1]
    for keyword, meaning in _MEANINGS.items():
        position = meaning.positions.get(name.rsplit("_", 1)[1])
        value = None if position is None else argument(call, keyword, position)
        if value is None:
            continue
        refused = [each for each in literals_of(file, value) if each is not ... and each not in meaning.values]
        if refused:
            verb = "is" if isinstance(value, ast.Constant) else "may be"
            text = f"{keyword} of {name} {verb} {refused[0]!r}; only {meaning.written} have a counterpart on an IPU"
            yield value, text


def scalers_of_trainers(file: ParsedFile, *factories: str) -> Set[int]:
    """Return the ids of the constructions of GradScaler that Ignite's trainers are given, and ours."""
    given = [argument(call, "scaler", _MEANINGS["scaler"].positions["trainer"]) for call, _ in file.calls(*factories)]
    names = {dotted(value) for value in given if value is not None} - {None}
    return {id(value) for value in given} | {id(value) for target, value in file.assigned if target in names}


_SCALER, _AUTOCAST = "torch.amp.GradScaler", "torch.amp.autocast"
# Where `enabled` stands, and where it does in the functions of torch.cuda.amp, which are given no device.
_POSITIONS = {_AUTOCAST: (2, 0), _SCALER: (5, 4)}


def switchable(file: ParsedFile) -> Iterator[ast.Call]:
    """Yield the calls of autocast and GradScaler whose arguments are written out."""
    return (call for call, _ in file.calls(_AUTOCAST, _SCALER) if not has_hidden_arguments(call))


def enabled_argument(file: ParsedFile, call: ast.Call) -> Optional[ast.expr]:
    """Return the argument `enabled` of a call of autocast or GradScaler."""
    name = dotted(call.func) or ""
    root = name.split(".")[0]
    written = f"{file.names.imports.get(root, root)}.{name}"
    return argument(call, "enabled", _POSITIONS[file.names.called(call) or ""][".cuda." in written])


def native_only(file: ParsedFile, call: ast.Call) -> bool:
    """Return whether a call of autocast or GradScaler switches it off where there is an IPU."""
    enabled = enabled_argument(file, call)
    parts = [] if enabled is None else [enabled, *getattr(enabled, "values", ())]
    conjunction = not isinstance(enabled, ast.BoolOp) or isinstance(enabled.op, ast.And)
    native = any(file.names.called(part) == "ignite_ipu.is_native" for part in parts)
    return (conjunction and native) or constant(enabled) is False
