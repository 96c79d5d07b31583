"""Training steps written out by hand become one call."""

from __future__ import annotations

import ast
from typing import List, Sequence

import libcst as cst

from ignite_ipu.migration.analysis.engine_functions import captured_functions
from ignite_ipu.migration.analysis.names import constant
from ignite_ipu.migration.rewriting.editor import Edit, Editor, Rewrite
from ignite_ipu.migration.source.comments import comments_around, comments_in
from ignite_ipu.migration.steps.plan import Plan


def apply(editor: Editor) -> None:
    """Replace zero_grad, forward, loss, backward, clipping and step of every understood step by one statement."""
    captured = captured_functions(editor.program)
    for step in editor.program.training.steps:
        if step.plan is None and getattr(step.function, "name", "") in captured:
            continue
        if step.plan is None:
            editor.remark(step.blame, step.reason)
        elif step.plan.loss_function is not None or step.plan.own_loss:
            _replace(editor, step.plan)


def _replace(editor: Editor, plan: Plan) -> None:
    call = _call(editor, plan)
    output = _output(editor, plan)
    forward = _forward(plan)
    for statement in plan.replaced:
        if statement is not forward:
            editor.replace(statement, _removed)
    kept = _kept(plan)
    above = [statement for statement in plan.replaced if statement.lineno < forward.lineno]
    below = [statement for statement in plan.replaced if statement.lineno > forward.lineno]
    comments = comments_around(editor, above, kept)
    later = [*comments_in(editor, forward, kept), *comments_around(editor, below, kept)]
    editor.replace(forward, _replaced(f"{output}, {plan.loss} = {call}", comments, later))


def _output(editor: Editor, plan: Plan) -> str:
    """Return what the output is bound to, without the loss where the model returns that, too."""
    if plan.output is None:
        return "_"
    if not isinstance(plan.output, ast.Tuple):
        return editor.moved_source(plan.output)
    if any(isinstance(part, ast.Name) and part.id == plan.loss for part in plan.output.elts):
        names = [editor.moved_source(part) for part in plan.output.elts]
        return f"({', '.join('_' if name == plan.loss else name for name in names)})"
    output = editor.moved_source(plan.output)
    return output if output.startswith("(") else f"({output})"


def _call(editor: Editor, plan: Plan) -> str:
    loss_function = "None" if plan.loss_function is None else editor.moved_source(plan.loss_function)
    parts = [plan.model, plan.optimizer, loss_function]
    parts += [editor.moved_source(value) for value in plan.inputs]
    parts += [
        f"{'**' if keyword.arg is None else f'{keyword.arg}='}{editor.moved_source(keyword.value)}"
        for keyword in plan.keywords
    ]
    # None is what the target is when it is left out.
    if plan.target is not None and constant(plan.target) is not None:
        parts.append(f"target={editor.moved_source(plan.target)}")
    if plan.max_grad_norm is not None:
        parts.append(f"max_grad_norm={editor.moved_source(plan.max_grad_norm)}")
    name = editor.need("ipu_train_batch", plan.replaced[0])
    return f"{name}({', '.join(parts)})"


def _kept(plan: Plan) -> List[ast.AST]:
    """Return the parts of the step that go into the call as they are written, with their comments."""
    parts = [plan.output, *plan.inputs, *(keyword.value for keyword in plan.keywords), plan.loss_function]
    parts += [plan.target, plan.max_grad_norm]
    return [part for part in parts if part is not None]


def _forward(plan: Plan) -> ast.stmt:
    """Return the statement that the call takes the place of."""
    for statement in plan.replaced:
        if isinstance(statement, ast.Assign):
            return statement
    raise AssertionError("a step without a forward is not understood")


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
