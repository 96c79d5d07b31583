"""Losses with reduction="sum" or "none", or summed by hand, that a trainer or ipu_train_batch trains with.

Gradients of the micro-batches are averaged over accumulation steps and replicas, so a summed loss weighs differently
from one large batch on a GPU; of a loss with reduction="none" the device minimises the sum. A loop that ipu_prepare
captures adds gradients up as PyTorch does.

Remedy: Use reduction="mean" or .mean(), or say
options.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum).

Example:
      import torch
      from ignite_ipu import create_ipu_trainer
      from torch import nn

      model = nn.Linear(4, 2)
      optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    - trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss(reduction="sum"))
    + trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss())
"""

from __future__ import annotations

import ast

from ignite_ipu.migration.analysis.names import argument, constant
from ignite_ipu.migration.analysis.summed_losses import summed_losses
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Severity
from ignite_ipu.migration.program import Program

SEVERITY, RUN = Severity.WARNING, Outcome.UNCHANGED


def check(program: Program) -> Hits:
    training = program.training
    if not (training.loss_functions or training.trainers or training.executors):
        return
    for call, name in program.calls("torch.nn.*"):
        is_loss = name.lower().replace("_", "").endswith(("loss", "entropy", "entropywithlogits", "div", "withlogits"))
        reduction = constant(argument(call, "reduction"))
        if reduction == "none" and _is_reduced(program, call):
            continue
        if is_loss and reduction in ("sum", "none") and not program.without_gradients(call):
            yield Hit(call, f"the loss is reduced by {reduction!r}; accumulation and replicas average it")
    for call in summed_losses(training):
        if not program.without_gradients(call):
            yield Hit(call, "the loss is a sum over the batch; accumulation and replicas average it")


def _is_reduced(program: Program, call: ast.Call) -> bool:
    """Tell whether something is computed from an unreduced loss, such as its mean."""
    return isinstance(program.parents.get(call), (ast.Attribute, ast.BinOp))
