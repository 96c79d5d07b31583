"""Arguments that PopTorch's version of an operator does not take."""

from __future__ import annotations

import ast
from typing import Iterator

from ignite_ipu.migration.findings import Hit, Rule, Severity
from ignite_ipu.migration.names import argument, constant
from ignite_ipu.migration.operators import RESTRICTIONS
from ignite_ipu.migration.program import Program


def check(program: Program) -> Iterator[Hit]:
    """Find calls with arguments that PopTorch refuses."""
    for call in program.nodes(ast.Call):
        name = program.names.called(call)
        for restriction in RESTRICTIONS.get(name or "", ()):
            value = argument(call, restriction.argument, restriction.position)
            if value is not None and restriction.refuses(constant(value)):
                yield Hit(value, f"{name}: {restriction.rule}", restriction.remedy)
    for fact in program.facts_of("call"):
        if fact.name in ("Tensor.topk", "torch.topk") and isinstance(fact.node, ast.Call):
            value = argument(fact.node, "sorted")
            if value is not None and constant(value) is False:
                yield Hit(value, "topk with sorted=False is not supported", "Leave sorted at its default.")


RULE = Rule(
    name="restricted-operator",
    severity=Severity.ERROR,
    summary="A supported layer or operator with an argument that PopTorch refuses.",
    rationale=(
        "PopTorch compiles some operators in part only: one-layer LSTMs, pooling without indices, cross entropy "
        "without class weights and so on."
    ),
    remedy="Use the form the message names.",
    bad="""\
from torch import nn

layer = nn.LSTM(4, 8, num_layers=2)
""",
    good="""\
from torch import nn

layer = nn.LSTM(4, 8)
""",
    check=check,
)
