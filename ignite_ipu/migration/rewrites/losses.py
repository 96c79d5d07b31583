"""Losses that are more than `loss_fn(output, target)` become a function of these two."""

from __future__ import annotations

import ast
from typing import List, Set

import libcst as cst

from ignite_ipu.migration.program import Program
from ignite_ipu.migration.rewrite import Edit, Editor, Rewrite
from ignite_ipu.migration.steps import Plan


def apply(editor: Editor) -> None:
    """Put the expression into a function in front of the code that holds the step, and call it there."""
    taken = set(editor.program.names.bound) | set(editor.program.names.imports)
    for step in editor.program.training.steps:
        if step.plan is None or step.plan.loss_function is not None:
            continue
        name = _new_name(taken)
        taken.add(name)
        assert step.plan.output is not None
        target = ", ".join(step.plan.per_batch)
        target = f"({target})" if len(step.plan.per_batch) > 1 else target
        outputs = editor.source_of(step.plan.output)
        outputs = outputs if isinstance(step.plan.output, ast.Name) or outputs.startswith("(") else f"({outputs})"
        editor.expression(step.plan.loss_expression, f"{name}({outputs}, {target})")
        _insert_before(editor, _top_level(editor.program, step.backward), _function(editor, step.plan, name))


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
    if len(plan.per_batch) == 1:
        second = plan.per_batch[0]
    else:
        second = "targets"
        lines.append(f"    {', '.join(plan.per_batch)} = targets")
    lines.append(f"    return {editor.source_of(plan.loss_expression)}")
    return "\n".join([f"def {name}({first}, {second}):", *lines])


def _top_level(program: Program, node: ast.AST) -> ast.stmt:
    above = [node, *program.ancestors(node)]
    statement = above[-2]
    assert isinstance(statement, ast.stmt)
    return statement


def _insert_before(editor: Editor, statement: ast.stmt, function: str) -> None:
    editor.replace(statement, _preceded(function))


def _preceded(function: str) -> Edit:
    def edit(node: cst.CSTNode) -> cst.FlattenSentinel[cst.BaseStatement]:
        assert isinstance(node, (cst.SimpleStatementLine, cst.BaseCompoundStatement))
        new = cst.parse_statement(function)
        assert isinstance(new, cst.FunctionDef)
        blank = [cst.EmptyLine(indent=False), cst.EmptyLine(indent=False)]
        kept = [*blank, *(line for line in node.leading_lines if line.comment is not None)]
        return cst.FlattenSentinel([new.with_changes(leading_lines=blank), node.with_changes(leading_lines=kept)])

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
