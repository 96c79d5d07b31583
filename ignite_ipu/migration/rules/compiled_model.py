"""Models that are compiled or scripted for another back end."""

from __future__ import annotations

from ignite_ipu.migration.findings import Hit, Hits, Rule, Severity
from ignite_ipu.migration.program import Program


def check(program: Program) -> Hits:
    """Find calls and decorators that compile for another back end."""
    names = ("torch.compile", "torch.jit.script", "torch.jit.trace")
    for call, name in program.calls(*names):
        yield Hit(call, f"{name} makes a model that PopTorch cannot trace")
    for decorator, name in program.decorators(*names):
        yield Hit(decorator, f"{name} makes code that PopTorch cannot trace")


RULE = Rule(
    name="compiled-model",
    severity=Severity.ERROR,
    summary="torch.compile, torch.jit.script and torch.jit.trace.",
    rationale=(
        "PopTorch traces the plain module itself and cannot trace one that torch.compile or TorchScript has taken over."
    ),
    remedy="Hand the plain module to the trainer; compiling is what the IPU back end does anyway.",
    example="""\
  import torch

- model = torch.compile(torch.nn.Linear(2, 2))
+ model = torch.nn.Linear(2, 2)
""",
    check=check,
)
