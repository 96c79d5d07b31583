"""Loops whose text shows that fused updates are enough: one update of one loss, with no use of a value before it."""

from __future__ import annotations

import ast
from typing import List, Optional, Sequence, Tuple

from ignite_ipu.migration.analysis.engine_changes import changes_fused_updates
from ignite_ipu.migration.analysis.names import dotted, method_calls, owner_of, walk
from ignite_ipu.migration.analysis.parsed_file import ParsedFile
from ignite_ipu.migration.analysis.training import Training

_CLIPPING = ("torch.nn.utils.clip_grad_norm_", "ignite_ipu.ipu_clip_grad_norm_")
_READS = ("item", "tolist", "numpy", "cpu")
_READING = ("float", "int", "bool", "print", "max", "min", "sum", "round", "str", "format")
_SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Pass)
_HOOKS = (
    "register_hook",
    "register_post_accumulate_grad_hook",
    "register_step_pre_hook",
    "register_step_post_hook",
    "retain_grad",
)
_LIBRARIES = ("torch.", "ignite_ipu.")


def makes_plain_updates(training: Training) -> bool:
    """Return whether all updates of a file are zero_grad, a loss, backward and step, in this order.

    Anything else may need an update on the host, which a captured loop makes if its settings allow it.
    """
    file = training.file
    uses = any(node.attr == "grad" and node not in file.traced for node in file.nodes(ast.Attribute))
    if uses or len(training.optimizer_calls) != 1 or list(file.method_calls(*_HOOKS)) or _hands_on(training):
        return False
    if changes_fused_updates(training):
        return False
    return all(_is_plain(training, backward) for backward in training.backwards)


def _hands_on(training: Training) -> bool:
    """Return whether code of other files is given an optimizer, and may step it."""
    file = training.file
    for call in file.nodes(ast.Call):
        given = [dotted(value) for value in (*call.args, *(keyword.value for keyword in call.keywords))]
        if not any(name is not None and training.is_optimizer(name) for name in given):
            continue
        name = dotted(call.func) or ""
        known = name.rpartition(".")[2] in {each.name for each in file.nodes(ast.FunctionDef)}
        if not known and not (file.names.resolve(call.func) or "").startswith(_LIBRARIES):
            return True
    return False


def _is_plain(training: Training, backward: ast.Call) -> bool:
    file = training.file
    function = file.function_of(backward)
    inside = walk(function if function is not None else file.tree)
    others = [call for call in training.backwards if call is not backward and file.function_of(call) is function]
    steps = [owner for _, owner in method_calls(inside, "step") if training.is_optimizer(owner)]
    statement = file.parents[backward]
    if others or len(steps) != 1 or backward.args or backward.keywords or not isinstance(statement, ast.Expr):
        return False
    before, after = _around(file, statement)
    updates = [each for each in after if file.names.called(_value(each) or each) not in _CLIPPING]
    first = _value(updates[0]) if updates else None
    if first is None or owner_of(first, "step") != steps[0] or first.args or first.keywords:
        return False
    clears = any(owner_of(_value(each), "zero_grad") == steps[0] for each in (*before, *updates[1:2]))
    return clears and all(_uses_nothing(each) for each in before)


def _around(file: ParsedFile, statement: ast.stmt) -> Tuple[List[ast.stmt], List[ast.stmt]]:
    """Return the statements of a loop or a function in front of one and behind it; none for one in another block."""
    above = file.parents[statement]
    body: Sequence[ast.stmt] = getattr(above, "body", [])
    if not isinstance(above, (ast.For, ast.FunctionDef)) or statement not in body:
        return [], []
    place = list(body).index(statement)
    return list(body[:place]), list(body[place + 1 :])


def _value(statement: ast.stmt) -> Optional[ast.Call]:
    """Return the call that a statement consists of."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    return value if isinstance(value, ast.Call) else None


def _uses_nothing(statement: ast.stmt) -> bool:
    """Return whether a statement only computes, without a decision or a read of a value."""
    if isinstance(statement, ast.With):
        return all(map(_uses_nothing, statement.body))
    if not isinstance(statement, _SIMPLE):
        return False
    calls = [node for node in walk(statement) if isinstance(node, ast.Call)]
    decides = any(isinstance(node, (ast.IfExp, ast.BoolOp, ast.JoinedStr)) for node in walk(statement))
    reads = any(owner_of(call, *_READS) is not None or dotted(call.func) in _READING for call in calls)
    return not decides and not reads
