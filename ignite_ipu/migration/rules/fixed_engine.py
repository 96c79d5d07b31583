"""A trainer or evaluator whose model gets other tensors, or whose optimizer another update, after it was made.

create_ipu_trainer compiles the update of one optimizer for the tensors that the model has then. It refuses other
parameter groups, another kind of update, replaced layers, a step on the host, trainable weights that no group holds,
and a second trainer of the model. create_ipu_evaluator refuses replaced layers. Loops and engines that `run` captures
are compiled again.

Remedy: Make such changes before the engine, or train with `import ignite_ipu.auto`, which `ignite-ipu migrate` does.

Example:
      import torch
      from ignite.engine import Events
      from ignite_ipu import create_ipu_trainer
      from torch import nn

      model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
      model[0].requires_grad_(False)
      optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    + optimizer.add_param_group({"params": model[0].parameters()})
      trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss())


      @trainer.on(Events.EPOCH_COMPLETED(once=3))
      def unfreeze():
          model[0].requires_grad_(True)
    -     optimizer.add_param_group({"params": model[0].parameters()})
"""

from __future__ import annotations

from ignite_ipu.migration.analysis.engine_changes import engine_changes
from ignite_ipu.migration.analysis.engines import EVALUATOR_FACTORIES, TRAINER_FACTORIES
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity

SEVERITY, RUN = Severity.ERROR, Outcome.HANDLED
REWRITTEN = True


def check(program: Program) -> Hits:
    ours = any(True for _ in program.calls(TRAINER_FACTORIES[1], EVALUATOR_FACTORIES[1]))
    refuses = "create_ipu_trainer" if program.training.trainers else "create_ipu_evaluator"
    for node, change in engine_changes(program.training):
        yield Hit(node, f"{refuses} refuses it: {change}", run=Outcome.REFUSED if ours else None)
