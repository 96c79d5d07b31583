"""Modes of a loop's models, as far as its text shows them: `train()` and `eval()` in the order of the calls."""

from __future__ import annotations

import ast
from typing import FrozenSet, Optional, Set, Tuple

from ignite_ipu.migration.analysis.names import argument, constant, dotted, last_of, unmoved
from ignite_ipu.migration.analysis.parsed_file import ParsedFile

Past = FrozenSet[Tuple[str, object]]
"""The last names of models that were put in a mode: True for training mode, None if the text leaves it open."""
_SETTERS = ("eval", "train")


class Modes:
    """The modes that code may put a file's models in. A model that nothing puts in evaluation mode is trained in it.

    Args:
        file: The file.
    """

    def __init__(self, file: ParsedFile) -> None:
        calls = [call for call, _ in file.method_calls(*_SETTERS)]
        made = [(name, _call_in(value)) for name, value in file.assigned]
        self._changed: Set[str] = {_model_of(call) for call in calls if _mode_of(call) is not True}
        self._changed |= {_last(name) for name, call in made if call is not None and _mode_of(call) is not True}

    def after(self, past: Past, model: str, mode: Optional[bool], sure: bool) -> Past:
        """Return the modes after a model was put in one, or may have been if that is not `sure`."""
        now = mode if sure or mode is self.of(past, model) else None
        last = _last(model)
        return frozenset([*(each for each in past if each[0] != last), (last, now)])

    def of(self, past: Past, model: str) -> Optional[bool]:
        """Return the mode of a model: True for training mode, None if the text leaves it open."""
        mode = dict(past).get(_last(model), None if _last(model) in self._changed else True)
        return mode if isinstance(mode, bool) else None

    def after_call(self, past: Past, call: ast.Call, sure: bool) -> Past:
        """Return the modes after a call of a method of a model."""
        is_set = isinstance(call.func, ast.Attribute) and call.func.attr in _SETTERS
        return self.after(past, _model_of(call), _mode_of(call), sure) if is_set and _model_of(call) else past

    def after_assignment(self, past: Past, target: str, value: ast.expr, sure: bool) -> Past:
        """Return the modes after an assignment of a model, as in `model = Net().cuda().eval()` or `self.net = net`."""
        call = _call_in(value)
        made, other = unmoved(value), dotted(unmoved(value))
        if call is not None:
            return self.after(past, target, _mode_of(call), sure)
        known = isinstance(made, ast.Call) and _last(target) not in {_last(dotted(each) or "") for each in made.args}
        mode = True if known else None if other is None else self.of(past, other)
        return self.after(past, target, mode, sure)


def _call_in(value: ast.expr) -> Optional[ast.Call]:
    """Return the last call of a method that sets the mode of a model, among those of an expression's own object."""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        if value.func.attr in _SETTERS:
            return value
        value = value.func.value
    return None


def _mode_of(call: ast.Call) -> Optional[bool]:
    assert isinstance(call.func, ast.Attribute)
    given = argument(call, "mode", 0)
    if call.func.attr == "eval" or given is None:
        return call.func.attr == "train"
    known = constant(given)
    return bool(known) if isinstance(known, (bool, int)) else None


def _model_of(call: ast.Call) -> str:
    """Return the last name of the model whose method is called, "" when it has none."""
    assert isinstance(call.func, ast.Attribute)
    return last_of(call.func.value)


def _last(name: str) -> str:
    return name.rpartition(".")[2]
