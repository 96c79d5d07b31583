"""Calls of a trained model under torch.no_grad().

The model's newest weights are brought to the host and evaluated there: right, but slow.

Remedy: Say model = ipu_prepare(Net()), which `ignite-ipu migrate` does; or use create_ipu_evaluator.

Example:
      import torch
    + from ignite_ipu import ipu_prepare

    - model = torch.nn.Linear(4, 2)
    + model = ipu_prepare(torch.nn.Linear(4, 2))
      model.eval()
      with torch.no_grad():
          for x, y in loader:
              output = model(x)
"""

from __future__ import annotations

from ignite_ipu.migration.analysis.captures import host_evaluations
from ignite_ipu.migration.analysis.names import dotted
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity

SEVERITY, RUN = Severity.NOTE, Outcome.HANDLED


def check(program: Program) -> Hits:
    for call in host_evaluations(program.training):
        yield Hit(call, f"{dotted(call.func)} is evaluated on the host, not on an IPU")
