"""A supported layer or operator with an argument that PopTorch refuses.

PopTorch compiles some operators in part only: embeddings without a maximal norm, pooling without indices, LSTMs of one
layer and so on. `run` handles the uses that this library computes by other operators. A restriction that only
PopTorch's sources show is a note.

Remedy: Use the form the message names.

Example:
      from torch import nn

    - layer = nn.Embedding(10, 4, scale_grad_by_freq=True)
    + layer = nn.Embedding(10, 4)
"""

from __future__ import annotations

import ast
from typing import Iterator, Tuple

from ignite_ipu.migration.analysis.operators import is_handled, is_loss, problem, refused_arguments
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity

SEVERITY, RUN = Severity.ERROR, Outcome.REFUSED


def check(program: Program) -> Hits:
    for call, name in _calls(program):
        found = problem(name) if is_loss(name) else None
        if found is not None and not program.without_gradients(call):
            yield Hit(call, f"{name}, {found.message}", found.remedy, run=Outcome.HANDLED if found.is_handled else None)
        for node, restriction in refused_arguments(program, name, call):
            doubt = ", as PopTorch's sources read" if restriction.likely else ""
            severity, run = None, Outcome.HANDLED if is_handled(name, restriction) else None
            if run is None and not restriction.refused:
                severity, run = Severity.NOTE, Outcome.UNCHANGED
            yield Hit(node, f"{name}: {restriction.says}{doubt}", restriction.instead, severity, run)


def _calls(program: Program) -> Iterator[Tuple[ast.Call, str]]:
    """Yield layers and losses at any place, and the other operators of traced code."""
    for call, name in program.calls("torch.nn.*"):
        if name[9:10].isupper() or is_loss(name):
            yield call, name
    for fact in program.facts_of("call"):
        layer = fact.name.startswith("torch.nn.") and fact.name[9:10].isupper()
        if isinstance(fact.node, ast.Call) and not layer and not is_loss(fact.name):
            yield fact.node, fact.name
