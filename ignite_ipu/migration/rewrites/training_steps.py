"""Training steps written out by hand become one call."""

from __future__ import annotations

import ast
from typing import List, Sequence

import libcst as cst

from ignite_ipu.migration.rewrite import Edit, Editor, Rewrite
from ignite_ipu.migration.steps import Plan


def apply(editor: Editor) -> None:
    """Replace zero_grad, forward, loss, backward, clipping and step of every understood step by one statement."""
    for step in editor.program.training.steps:
        if step.plan is None:
            editor.remark(step.blame, step.reason)
        elif step.plan.loss_function is not None:
            _replace(editor, step.plan)


def _replace(editor: Editor, plan: Plan) -> None:
    # A statement that shares its line with another cannot be taken out alone.
    lines = [statement.lineno for statement in plan.replaced]
    everything = [node for node in ast.walk(editor.program.tree) if isinstance(node, ast.stmt)]
    shared = [node for node in everything if node.lineno in lines and node not in plan.replaced]
    if len(set(lines)) != len(lines) or any(not hasattr(node, "body") for node in shared):
        editor.remark(plan.replaced[0], "the step's statements share their lines with others")
        return
    call = _call(editor, plan)
    output = editor.source_of(plan.output) if plan.output is not None else "_"
    if isinstance(plan.output, ast.Tuple) and not output.startswith("("):
        output = f"({output})"
    forward = _forward(plan)
    for statement in plan.replaced:
        if statement is not forward:
            editor.replace(statement, _removed)
    above = [statement for statement in plan.replaced if statement.lineno < forward.lineno]
    below = [statement for statement in plan.replaced if statement.lineno > forward.lineno]
    editor.replace(
        forward, _replaced(f"{output}, {plan.loss} = {call}", _comments(editor, above), _comments(editor, below))
    )


def _call(editor: Editor, plan: Plan) -> str:
    assert plan.loss_function is not None
    assert plan.target is not None
    parts = [plan.model, plan.optimizer, editor.source_of(plan.loss_function)]
    parts += [editor.source_of(value) for value in plan.inputs]
    parts += [f"{keyword.arg}={editor.source_of(keyword.value)}" for keyword in plan.keywords]
    parts.append(f"target={editor.source_of(plan.target)}")
    if plan.max_grad_norm is not None:
        parts.append(f"max_grad_norm={editor.source_of(plan.max_grad_norm)}")
    name = editor.need("ipu_train_batch", plan.replaced[0])
    return f"{name}({', '.join(parts)})"


def _forward(plan: Plan) -> ast.stmt:
    """Return the statement that the call takes the place of."""
    for statement in plan.replaced:
        if isinstance(statement, ast.Assign):
            return statement
    raise AssertionError("a step without a forward is not understood")


def _comments(editor: Editor, statements: Sequence[ast.stmt]) -> List[str]:
    """Return the comments above and behind statements that go away."""
    lines = editor.program.source.text.split("\n")
    found: List[str] = []
    for statement in statements:
        above: List[str] = []
        number = statement.lineno - 2
        while number >= 0 and lines[number].lstrip().startswith("#"):
            above.insert(0, lines[number].strip())
            number -= 1
        found += above
        rest = lines[(statement.end_lineno or statement.lineno) - 1][statement.end_col_offset or 0 :].strip()
        if rest.startswith("#"):
            found.append(rest)
    return found


def _removed(node: cst.CSTNode) -> cst.RemovalSentinel:
    return cst.RemoveFromParent()


def _replaced(source: str, above: Sequence[str], below: Sequence[str]) -> Edit:
    def edit(node: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(node, cst.SimpleStatementLine)
        line = cst.parse_statement(source)
        assert isinstance(line, cst.SimpleStatementLine)
        comments = [cst.EmptyLine(comment=cst.Comment(text)) for text in above]
        later = [cst.EmptyLine(comment=cst.Comment(text)) for text in below]
        leading = [*comments, *node.leading_lines, *later]
        return node.with_changes(body=line.body, leading_lines=leading)

    return edit


REWRITE = Rewrite(
    name="training-steps",
    summary="Training steps written out by hand become one call.",
    before="""\
import torch
from torch import nn

model = nn.Linear(4, 2)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model.train()
for x, y in loader:
    optimizer.zero_grad()
    output = model(x)
    loss = criterion(output, y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
""",
    after="""\
import torch
from torch import nn
from ignite_ipu import ipu_train_batch

model = nn.Linear(4, 2)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model.train()
for x, y in loader:
    output, loss = ipu_train_batch(model, optimizer, criterion, x, target=y, max_grad_norm=1.0)
""",
    apply=apply,
)
