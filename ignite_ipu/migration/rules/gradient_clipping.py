"""clip_grad_norm_ and clip_grad_value_.

Gradients never leave the device, so there is nothing to clip between backward() and step().

Remedy: Clip by norm with ipu_clip_grad_norm_, which `ignite-ipu migrate` does, or with the trainer's max_grad_norm: for
Adam, AdamW, and SGD without momentum. With momentum PopTorch's SGD clips the velocity, and clipping by value has no
counterpart: both run with IPUConfig(update='host'), and `run` makes such updates on the host.

Example:
      import torch
    + from ignite_ipu import ipu_clip_grad_norm_, ipu_prepare
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
    -     nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    +     ipu_clip_grad_norm_(model.parameters(), 1.0)
          optimizer.step()
"""

from __future__ import annotations

import ast

from ignite_ipu.capabilities import GRADIENTS
from ignite_ipu.migration.analysis.settings import settings_of
from ignite_ipu.migration.analysis.training import clips_on_host
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity

SEVERITY, RUN = Severity.ERROR, Outcome.HANDLED
REWRITTEN = True


def check(program: Program) -> Hits:
    for call, name in program.calls(
        "torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_value_", "torch.nn.utils.clip_grad_norm"
    ):
        entry = GRADIENTS[name if name.endswith("_") else f"{name}_"]
        sure = _is_sure(program, call)
        outcome = Outcome.ON_HOST if sure and _cannot_clip(program) else None
        message = f"{name.rsplit('.', 1)[1]} has no gradients to clip: they stay on the device"
        yield Hit(call, message, severity=None if sure else Severity.NOTE, run=outcome, entry=entry)


def _is_sure(program: Program, call: ast.Call) -> bool:
    """Return whether gradients are clipped for sure: behind no unknown test that decides about the clipping alone."""
    tests = [above for above in program.ancestors(call) if isinstance(above, ast.If)]
    return all(settings_of(program).decision(each.test) is not None or _of_updates(each) for each in tests)


def _of_updates(node: ast.If) -> bool:
    """Return whether a test decides about whole updates, whose step is behind it, too; or asks for the main program."""
    attributes = {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}
    names = {part.id for part in ast.walk(node.test) if isinstance(part, ast.Name)}
    return bool(attributes & {"step", "sync_gradients"}) or "__name__" in names


def _cannot_clip(program: Program) -> bool:
    """Return whether all optimizers of the file are SGD with momentum, or RMSprop."""
    calls = program.training.optimizer_calls
    return bool(calls) and all(clips_on_host(call, name) for call, name in calls)
