"""amsgrad, PopTorch's maximize, differentiable, decoupled_weight_decay and tensor learning rates.

PopTorch refuses amsgrad and tensor rates, and silently ignores maximize: it would minimise a loss that you want to
maximise. With an optimizer of torch.optim the device minimises the negated loss, which is the same update. `run` makes
updates with amsgrad on the host.

Remedy: For maximize use torch.optim, or negate the loss; leave amsgrad and differentiable out, or set
IPUConfig(update='host'); give lr as a number.

Example:
      import torch

    - optimizer = torch.optim.Adam(model.parameters(), lr=0.01, amsgrad=True)
    + optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
"""

from __future__ import annotations

import ast

from ignite_ipu.capabilities import Treatment, argument_capability
from ignite_ipu.migration.analysis.names import constant
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity

SEVERITY, RUN = Severity.ERROR, Outcome.ON_HOST


def check(program: Program) -> Hits:
    for call, name in program.training.optimizer_calls:
        for keyword in call.keywords:
            entry = argument_capability(name, keyword.arg or "")
            missing = entry is not None and entry.treatment in (Treatment.REFUSED, Treatment.UPDATES_ON_HOST)
            if entry is not None and missing and constant(keyword.value) not in (False, None):
                yield Hit(keyword.value, f"{keyword.arg} of {name}: {entry.sentence}", entry=entry)
            if keyword.arg == "lr" and (program.names.called(keyword.value) or "").startswith("torch."):
                message = f"the learning rate of {name} is a tensor; PopTorch takes numbers only"
                yield Hit(keyword.value, message, run=Outcome.HANDLED)
            if keyword.arg == "betas" and isinstance(keyword.value, ast.List):
                message = f"betas of {name} is a list; PopTorch takes a pair only"
                yield Hit(keyword.value, message, "Write a tuple.", run=Outcome.HANDLED)
