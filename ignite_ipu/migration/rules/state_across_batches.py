"""State that one batch hands to the next in Python."""

from __future__ import annotations

import ast
from typing import Iterator, Set

from ignite_ipu.migration.analysis.bindings import names_bound, statements_before
from ignite_ipu.migration.analysis.names import dotted
from ignite_ipu.migration.findings import Hit, Rule, Severity
from ignite_ipu.migration.program import Program


def check(program: Program) -> Iterator[Hit]:
    """Find training steps and model calls that take what an earlier one gave."""
    reported = set()
    for step in program.training.steps:
        if "is carried from one batch to the next" in step.reason:
            reported.add(id(step.blame))
            yield Hit(step.blame, step.reason)
    traced = {id(part) for model in program.models for part in ast.walk(model.node)}
    for loop in program.nodes(ast.For):
        if id(loop) in traced:
            continue
        for part in loop.body:
            if not isinstance(part, ast.Assign) or not isinstance(part.value, ast.Call):
                continue
            call = part.value
            # `for layer in layers: x = layer(x)` is one forward.
            steps_on = {dotted(name) for name in ast.walk(loop.target)}
            if dotted(call.func) not in program.training.models - steps_on or id(call) in reported:
                continue
            stored = {name.id for name in ast.walk(part.targets[0]) if isinstance(name, ast.Name)}
            carried = stored & {
                name.id for value in call.args for name in ast.walk(value) if isinstance(name, ast.Name)
            }
            if carried and not _rebound_before(loop, part, carried) and not _within_a_batch(program, loop, carried):
                yield Hit(call, f"{sorted(carried)[0]!r} is carried from one batch to the next")


def _rebound_before(loop: ast.For, part: ast.stmt, names: Set[str]) -> bool:
    before = loop.body[: loop.body.index(part)]
    return names <= {name for node in [loop.target, *before] for name in names_bound(node)}


def _within_a_batch(program: Program, loop: ast.For, names: Set[str]) -> bool:
    """Whether a loop is a part of one batch's work, such as a decoder's steps, and begins with names of its own."""
    batch = next(program.loops_around(loop), None)
    if batch is None or any(part is step.backward for step in program.training.steps for part in ast.walk(loop)):
        return False
    return names <= {name for statement in statements_before(batch.body, loop) for name in names_bound(statement)}


RULE = Rule(
    name="state-across-batches",
    severity=Severity.ERROR,
    summary="A value that a model returns and gets back with the next batch, such as an LSTM's hidden state.",
    rationale=(
        "Every call of a compiled program stands alone, and may stand for many steps; a tensor carried over by "
        "Python would skip the steps in between."
    ),
    remedy="Keep the state in a buffer that forward updates in place, or start each sequence afresh.",
    example="""\
  import torch
  from torch import nn

  model = nn.Linear(4, 2)
  criterion = nn.CrossEntropyLoss()
  optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
  model.train()
  for x, y in loader:
      optimizer.zero_grad()
-     out, hidden = model(x, hidden)
-     loss = criterion(out, y)
+     loss = criterion(model(x), y)
      loss.backward()
      optimizer.step()
""",
    check=check,
)
