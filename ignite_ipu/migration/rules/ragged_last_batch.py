"""A DataLoader that an IPU's trainer or ipu_train_batch trains from, without drop_last=True.

All batches of a compiled program have one shape: a trainer drops the samples of an incomplete last batch;
ipu_train_batch and a loop that ipu_prepare captures compile another program for it.

Remedy: Set drop_last=True, so that native runs drop them too.

Example:
      import torch
      from ignite_ipu import ipu_train_batch
      from torch import nn

      model = nn.Linear(4, 2)
      criterion = nn.CrossEntropyLoss()
      optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    - loader = torch.utils.data.DataLoader(data, batch_size=8)
    + loader = torch.utils.data.DataLoader(data, batch_size=8, drop_last=True)
      model.train()
      for x, y in loader:
          _, loss = ipu_train_batch(model, optimizer, criterion, x, target=y)
"""

from __future__ import annotations

from ignite_ipu.migration.analysis.names import argument, constant
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity

SEVERITY, RUN = Severity.WARNING, Outcome.UNCHANGED


def check(program: Program) -> Hits:
    for name, (call, replaced) in sorted(program.training.engines.training_loaders.items()):
        if any(keyword.arg in (None, "batch_sampler") for keyword in call.keywords):
            continue
        value = argument(call, "drop_last")
        if value is not None and constant(value) is not False:
            continue
        if not replaced:
            yield Hit(call, f"{name} is trained from, and a smaller last batch is a program of its own")
        else:
            # The engine replaces the loader by one that drops it, and still evaluates every sample.
            message = f"{name} is trained from, and an IPU engine drops a smaller last batch"
            yield Hit(call, message, severity=Severity.NOTE)
