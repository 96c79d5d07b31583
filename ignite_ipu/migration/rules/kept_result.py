"""Code of an engine's model, loss or hook that keeps results for other code.

create_ipu_trainer and create_ipu_evaluator compile it: it runs once, and its tensors are the device's. A list that a
loss fills stays empty, and an attribute that forward sets has its earlier value on the host. Loops and engines that
`run` captures bring such results to the host.

Remedy: Return the result from forward, beside the output, or train with `import ignite_ipu.auto`, which
`ignite-ipu migrate` does.

Example:
      import torch
      from ignite_ipu import create_ipu_trainer
      from torch import nn

      model = nn.Linear(4, 2)
      optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
      parts = []


      def loss_fn(prediction, target):
          fit = (prediction - target).pow(2).mean()
    -     parts.append(fit.detach())
          return fit + 0.1 * prediction.abs().mean()


      trainer = create_ipu_trainer(model, optimizer, loss_fn)
"""

from __future__ import annotations

from ignite_ipu.migration.analysis.engines import EVALUATOR_FACTORIES, TRAINER_FACTORIES
from ignite_ipu.migration.analysis.kept_results import kept_results
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity

SEVERITY, RUN = Severity.ERROR, Outcome.HANDLED
REWRITTEN = True


def check(program: Program) -> Hits:
    ours = any(True for _ in program.calls(TRAINER_FACTORIES[1], EVALUATOR_FACTORIES[1]))
    for node, fact in kept_results(program.training):
        yield Hit(node, fact, run=Outcome.UNCHANGED if ours else None)
