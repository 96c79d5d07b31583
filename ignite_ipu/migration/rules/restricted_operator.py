"""Arguments that PopTorch's version of an operator does not take."""

from __future__ import annotations

import ast
from typing import Iterator, Optional

from ignite_ipu.migration.evaluations import without_gradients
from ignite_ipu.migration.findings import Hit, Rule, Severity
from ignite_ipu.migration.names import argument, constant
from ignite_ipu.migration.operators import REFUSED_LOSSES, RESTRICTIONS
from ignite_ipu.migration.program import Program


def check(program: Program) -> Iterator[Hit]:
    """Find calls with arguments that PopTorch refuses."""
    for call in program.nodes(ast.Call):
        name = program.names.called(call)
        if name in REFUSED_LOSSES and not without_gradients(program, call):
            yield Hit(call, f"{name} is not supported", REFUSED_LOSSES[name])
        for restriction in RESTRICTIONS.get(_order_of(name, call), ()):
            value = argument(call, restriction.argument, restriction.position)
            if restriction.by_hand and not program.training.executors:
                continue
            if value is not None and restriction.refuses(constant(value)):
                yield Hit(value, f"{name}: {restriction.rule}", restriction.remedy)
    for fact in program.facts_of("call"):
        if fact.name in ("Tensor.topk", "torch.topk") and isinstance(fact.node, ast.Call):
            value = argument(fact.node, "sorted")
            if value is not None and constant(value) is False:
                yield Hit(value, "topk with sorted=False is not supported", "Leave sorted at its default.")


def _order_of(name: Optional[str], call: ast.Call) -> str:
    """Return the name of the layer or function whose positional arguments a call has."""
    if name == "torch.nn.RNN" and isinstance(constant(argument(call, "", 3)), bool):
        return "torch.nn.LSTM"  # before PyTorch 2.1, where the nonlinearity was no positional argument
    return name or ""


RULE = Rule(
    name="restricted-operator",
    severity=Severity.ERROR,
    summary="A supported layer or operator with an argument that PopTorch refuses.",
    rationale=(
        "PopTorch compiles some operators in part only: one-layer LSTMs, pooling without indices, cross entropy "
        "without class weights or label smoothing and so on."
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
