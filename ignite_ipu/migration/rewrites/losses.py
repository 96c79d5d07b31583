"""Losses that are more than `loss_fn(output, target)` become a function of these two."""

from __future__ import annotations

import ast
from typing import List, Set

import libcst as cst

from ignite_ipu.migration.rewriting.editor import Edit, Editor, Rewrite
from ignite_ipu.migration.source.comments import comments_around, comments_in
from ignite_ipu.migration.steps.plan import Plan


def apply(editor: Editor) -> None:
    """Put the expression into a function in front of the code that holds the step, and call it there."""
    taken = set(editor.program.names.bound) | set(editor.program.names.imports)
    for step in editor.program.training.steps:
        if step.plan is None or step.plan.loss_function is not None or step.plan.own_loss:
            continue
        name = _new_name(taken)
        taken.add(name)
        assert step.plan.output is not None
        target = ", ".join(step.plan.per_batch) or "None"
        target = f"({target})" if len(step.plan.per_batch) > 1 else target
        outputs = editor.source_of(step.plan.output)
        outputs = outputs if isinstance(step.plan.output, ast.Name) or outputs.startswith("(") else f"({outputs})"
        editor.expression(step.plan.loss_expression, f"{name}({outputs}, {target})")
        assert step.plan.function_before is not None
        function = _function(editor, step.plan, name)
        for statement in step.plan.loss_statements:
            editor.replace(statement, _removed)
        inside = editor.program.function_of(step.plan.function_before) is not None
        editor.replace(step.plan.function_before, _preceded(function, blank=1 if inside else 2))


def _new_name(taken: Set[str]) -> str:
    number = 1
    while True:
        name = "training_loss" if number == 1 else f"training_loss_{number}"
        if name not in taken:
            return name
        number += 1


def _function(editor: Editor, plan: Plan, name: str) -> str:
    output = plan.output
    lines: List[str] = []
    if isinstance(output, ast.Name):
        first = output.id
    else:
        first = "outputs"
        assert output is not None
        lines.append(f"    {editor.source_of(output).strip('()')} = outputs")
    if len(plan.per_batch) <= 1:
        second = plan.per_batch[0] if plan.per_batch else "_"
    else:
        second = "targets"
        lines.append(f"    {', '.join(plan.per_batch)} = targets")
    for statement in plan.loss_statements:
        lines += [f"    {comment}" for comment in comments_around(editor, [statement], [statement])]
        lines.append(f"    {editor.moved_source(statement, '    ')}")
    value = plan.loss_expression
    lines += [f"    {comment}" for comment in comments_in(editor, editor.program.statement_of(value), [value])]
    returned = editor.moved_source(value, "    ")
    lines.append(f"    return {returned}" if _stands_alone(returned) else f"    return ({returned})")
    return "\n".join([f"def {name}({first}, {second}):", *lines])


def _stands_alone(expression: str) -> bool:
    """Whether an expression's source is whole without the parentheses that let it go on in the next line."""
    try:
        ast.parse(expression, mode="eval")
    except SyntaxError:
        return False
    return True


def _removed(node: cst.CSTNode) -> cst.RemovalSentinel:
    return cst.RemoveFromParent()


def _preceded(function: str, blank: int) -> Edit:
    def edit(node: cst.CSTNode) -> cst.FlattenSentinel[cst.BaseStatement]:
        assert isinstance(node, (cst.SimpleStatementLine, cst.BaseCompoundStatement))
        new = cst.parse_statement(function)
        assert isinstance(new, cst.FunctionDef)
        lines = [cst.EmptyLine(indent=False)] * blank
        kept = [*lines, *(line for line in node.leading_lines if line.comment is not None)]
        return cst.FlattenSentinel([new.with_changes(leading_lines=lines), node.with_changes(leading_lines=kept)])

    return edit


REWRITE = Rewrite(
    name="losses",
    summary="Losses that are more than loss_fn(output, target) become a function of these two.",
    before="""\
import torch
import torch.nn.functional as F

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model.train()
for x, y in loader:
    optimizer.zero_grad()
    output = model(x)
    loss = F.mse_loss(output.squeeze(1), y)
    loss.backward()
    optimizer.step()
""",
    after="""\
import torch
import torch.nn.functional as F

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model.train()


def training_loss(output, y):
    return F.mse_loss(output.squeeze(1), y)


for x, y in loader:
    optimizer.zero_grad()
    output = model(x)
    loss = training_loss(output, y)
    loss.backward()
    optimizer.step()
""",
    apply=apply,
)
