"""Training loops written out by hand stay as they are: their models and optimizers are prepared.

Where the text does not show that updates on the device are enough, the loop may change to updates on the host:
`ipu_prepare(optimizer, model, config={"update": "auto"})`.

Example:
      import torch
      from torch import nn
    + from ignite_ipu import ipu_prepare

      model = nn.Linear(4, 2)
      criterion = nn.CrossEntropyLoss()
    - optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    + optimizer = ipu_prepare(torch.optim.SGD(model.parameters(), lr=0.1), model)
      model.train()
      for x, y in loader:
          optimizer.zero_grad()
          loss = criterion(model(x), y)
          loss.backward()
          optimizer.step()
"""

from __future__ import annotations

import ast
from typing import Union

import libcst as cst

from ignite_ipu.migration.analysis.captures import evaluated_models, find_captures
from ignite_ipu.migration.analysis.plain_updates import makes_plain_updates
from ignite_ipu.migration.rewriting.editor import Editor

UPDATES = 'config={"update": "auto"}'
"""Argument of `ipu_prepare` and `ipu_step` for a loop that may need updates on the host."""

_Statement = Union[cst.SimpleStatementLine, cst.BaseCompoundStatement]


def apply(editor: Editor) -> None:
    """Put `ipu_prepare` around optimizers and evaluated models, or in front of loops that are given theirs."""
    training = editor.program.training
    captures, _ = find_captures(training)
    settings = () if makes_plain_updates(training) else (UPDATES,)
    for node, names in captures:
        name = editor.need("ipu_prepare", node)
        if isinstance(node, ast.Call):
            editor.replace(node, _prepared, name, *names, *settings)
        else:
            editor.replace(node, _preceded, f"{name}({', '.join((*names, *settings))})")
    for made in evaluated_models(training):
        editor.replace(made, _prepared, editor.need("ipu_prepare", made))


def _prepared(node: cst.Call, name: str, *others: str) -> cst.Call:
    return cst.Call(cst.Name(name), [cst.Arg(node), *map(_argument, others)])


def _argument(text: str) -> cst.Arg:
    if text == UPDATES:
        return cst.ensure_type(cst.parse_expression(f"f({text})"), cst.Call).args[0]
    return cst.Arg(cst.parse_expression(text.lstrip("*")), star="*" if text.startswith("*") else "")


def _preceded(node: _Statement, call: str) -> cst.FlattenSentinel[cst.BaseStatement]:
    lines = list(node.leading_lines)
    first = next((position for position, line in enumerate(lines) if line.comment is not None), len(lines))
    new = cst.parse_statement(call).with_changes(leading_lines=lines[:first])
    return cst.FlattenSentinel([new, node.with_changes(leading_lines=lines[first:])])
