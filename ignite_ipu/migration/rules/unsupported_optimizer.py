"""Any optimizer but SGD, Adam, AdamW, RMSprop and poptorch.optim's LAMB.

The update runs on the device, in PopTorch's own implementation; only these five exist there. `run` makes the updates
of all others on the host.

Remedy: Choose the nearest of them: AdamW for Adagrad, NAdam, RAdam and Adamax; RMSprop for Adadelta and Rprop. Or set
IPUConfig(update='host'), with which any optimizer trains.

Example:
      import torch

    - optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
    + optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
"""

from __future__ import annotations

import ast

from ignite_ipu.capabilities import Treatment, optimizer_capability
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity

SEVERITY, RUN = Severity.ERROR, Outcome.ON_HOST


def check(program: Program) -> Hits:
    for call, name in program.training.optimizer_calls:
        entry = optimizer_capability(name)
        if entry.treatment is not Treatment.DEVICE and entry.last != "Optimizer":
            yield Hit(call, f"{name} does not exist on an IPU", entry=entry)
    for node in program.nodes(ast.ClassDef):
        bases = [program.names.resolve(base) or "" for base in node.bases]
        optimizes = any(base.startswith("torch.optim.") for base in bases)
        steps = any(isinstance(item, ast.FunctionDef) and item.name == "step" for item in node.body)
        if optimizes and steps and not any(base.startswith("torch.optim.lr_scheduler") for base in bases):
            yield Hit(node, f"{node.name} updates weights in Python, which never runs on an IPU")
