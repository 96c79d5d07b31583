"""Gradients that are cleared unused or used by two updates, and weights that are written before the step.

An update on the device is one program from the losses to the weights, by gradients that begin and end in it. `run`
makes other updates on the host, where PyTorch follows each event as it is written.

Remedy: Clear gradients once for each update, after the step or before the first backward(), and write weights after the
step; or leave it, with updates on the host: IPUConfig(update='host').

In the loop:
    - with torch.no_grad():
    -     model.weight.mul_(0.99)
      optimizer.step()
    + with torch.no_grad():
    +     model.weight.mul_(0.99)
"""

from __future__ import annotations

from ignite_ipu.migration.analysis.update_events import host_updates
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity

SEVERITY, RUN = Severity.WARNING, Outcome.ON_HOST


def check(program: Program) -> Hits:
    for event in host_updates(program.training):
        yield Hit(event.node, event.reason)
