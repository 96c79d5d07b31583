"""Training steps written out by hand."""

from __future__ import annotations

from typing import Iterator

from ignite_ipu.migration.analysis.engine_functions import capturable_engines, captured_functions
from ignite_ipu.migration.findings import Hit, Rule, Severity
from ignite_ipu.migration.program import Program


def check(program: Program) -> Iterator[Hit]:
    """Find training steps, with what keeps `migrate` from rewriting each."""
    executors = program.training.executors
    captured = captured_functions(program)
    capturable = {function.name for _, function in capturable_engines(program)}
    for step in program.training.steps:
        if getattr(step.function, "name", "") in captured:
            continue
        if executors and step.plan is None:
            # In hand-written PopTorch code a backward() is another mistake.
            continue
        if step.plan is not None:
            yield Hit(step.backward, f"this step of {step.plan.model} runs on the host, not on an IPU")
            continue
        if getattr(step.function, "name", "") in capturable:
            yield Hit(
                step.backward,
                "this training step runs on the host, not on an IPU",
                "Give the function to ipu_step, Engine(ipu_step(...)), which `ignite-ipu migrate` does.",
            )
            continue
        line = program.source.locate(getattr(step.blame, "lineno", step.backward.lineno))[1]
        yield Hit(
            step.backward,
            f"this training step runs on the host, and cannot be rewritten: {step.reason} (line {line})",
            "Bring it into the common shape (zero_grad, forward, loss, backward, step, one after the other), or write "
            "it for create_ipu_trainer, or for ipu_step.",
        )


RULE = Rule(
    name="hand-written-step",
    severity=Severity.ERROR,
    summary="loss.backward() and optimizer.step() in a loop or in an Ignite process function.",
    rationale=(
        "On an IPU forward, loss, backward and update are one compiled program that one call runs; steps taken "
        "one by one run on the host's CPU."
    ),
    remedy=(
        "Replace them by ipu_train_batch(model, optimizer, loss_fn, x, target=y), which `ignite-ipu migrate` does "
        "for the common shape."
    ),
    example="""\
  import torch
+ from ignite_ipu import ipu_train_batch
  from torch import nn

  model = nn.Linear(4, 2)
  criterion = nn.CrossEntropyLoss()
  optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
  model.train()
  for x, y in loader:
-     optimizer.zero_grad()
-     loss = criterion(model(x), y)
-     loss.backward()
-     optimizer.step()
+     _, loss = ipu_train_batch(model, optimizer, criterion, x, target=y)
""",
    check=check,
)
