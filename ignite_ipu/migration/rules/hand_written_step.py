"""loss.backward() and optimizer.step() in a loop or in an Ignite process function.

On an IPU forward, loss, backward and update are one compiled program that one call runs; steps taken one by one run on
the host's CPU.

Remedy: Capture the loop: optimizer = ipu_prepare(torch.optim.SGD(...), model), which `ignite-ipu migrate` does. The
loop stays as it is.

Example:
      import torch
    + from ignite_ipu import ipu_prepare
      from torch import nn

      model = nn.Linear(4, 2)
      criterion = nn.CrossEntropyLoss()
    - optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    + optimizer = ipu_prepare(torch.optim.SGD(model.parameters(), lr=0.1), model)
      model.train()
      for x, y in loader:
          optimizer.zero_grad()
          loss = criterion(model(x), y)
          loss.backward()
          optimizer.step()
"""

from __future__ import annotations

from ignite_ipu.migration.analysis.captures import find_captures
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity

SEVERITY, RUN = Severity.ERROR, Outcome.HANDLED
REWRITTEN = True


def check(program: Program) -> Hits:
    captures, unclear = find_captures(program.training)
    if not captures and unclear is None and not program.training.engines.process_functions:
        return
    for backward in program.training.backwards:
        if getattr(program.function_of(backward), "name", "") in program.training.engines.captured:
            continue
        if unclear is None:
            yield Hit(backward, "this training step runs on the host, not on an IPU")
            continue
        line = program.source.locate(unclear.node.lineno)[1]
        yield Hit(
            backward,
            f"this training step runs on the host, and migrate cannot capture it: {unclear.reason} (line {line})",
            unclear.remedy
            or "Prepare the optimizer together with the models that it trains, as the loop calls them: "
            "ipu_prepare(optimizer, model).",
            run=Outcome.ON_HOST if unclear.on_host else None,
        )
