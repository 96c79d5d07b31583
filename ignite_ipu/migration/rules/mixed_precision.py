"""Mixed precision as GPUs do it."""

from __future__ import annotations

from typing import Iterator

from ignite_ipu.migration.analysis.precision_arguments import refused_precision
from ignite_ipu.migration.findings import Hit, Rule, Severity
from ignite_ipu.migration.program import Program
from ignite_ipu.migration.steps.training import EVALUATOR_FACTORIES, TRAINER_FACTORIES


def check(program: Program) -> Iterator[Hit]:
    """Find autocast, gradient scalers, and Ignite's switches for them where they mean something else."""
    for call, name in program.calls("torch.amp.GradScaler", "torch.amp.autocast"):
        yield Hit(call, f"{name.rsplit('.', 1)[1]} has no counterpart on an IPU")
    for decorator, _ in program.decorators("torch.amp.autocast"):
        yield Hit(decorator, "autocast has no counterpart on an IPU")
    for call, name in program.calls(*TRAINER_FACTORIES, *EVALUATOR_FACTORIES):
        for value, text in refused_precision(call, name):
            yield Hit(value, text)


RULE = Rule(
    name="mixed-precision",
    severity=Severity.ERROR,
    summary="autocast, GradScaler, and values of Ignite's amp_mode and scaler that an IPU has not.",
    rationale="PopTorch 3.3 has no autocast, and a GradScaler works on gradients that never reach the host.",
    remedy=(
        'Give create_ipu_trainer amp_mode="amp", which multiplies in half precision, with loss_scaling or scaler=True '
        "for the loss; or train in half precision with model.half(), or in float32."
    ),
    example="""\
  import torch

- scaler = torch.cuda.amp.GradScaler()
+ model = torch.nn.Linear(2, 2).half()
""",
    check=check,
)
