"""Averaged copies of a model (EMA, SWA) updated in the training loop, and weights looked at there.

The newest weights are on the device; touching them on the host brings all of them back, each time.

Remedy: Average at the end of an epoch, or every N iterations.

Before the loop:
      average = torch.optim.swa_utils.AveragedModel(model)

In the loop:
      optimizer.step()
    - average.update_parameters(model)

After the loop:
    + average.update_parameters(model)
"""

from __future__ import annotations

import ast

from ignite_ipu.migration.analysis.names import dotted, owner_of, walk
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity

SEVERITY, RUN = Severity.NOTE, Outcome.HANDLED


def check(program: Program) -> Hits:
    models = program.training.models
    for backward in program.training.backwards:
        loop = next(program.loops_around(backward), None)
        for part in walk(loop) if loop is not None else ():
            if not isinstance(part, ast.Call) or not isinstance(part.func, ast.Attribute):
                continue
            if next(program.loops_around(part), None) is not loop or _is_clipped(program, part):
                continue
            reads = owner_of(part, "state_dict", "parameters", "named_parameters")
            model = next((name for name in (reads, *map(dotted, part.args)) if name in models), None)
            if model is not None:
                yield Hit(part, f"the weights of {model} are brought to the host in every iteration")


def _is_clipped(program: Program, call: ast.Call) -> bool:
    """Return whether a call gives gradients to clip, which are part of the device's step."""
    around = program.parents[call]
    function = around.func if isinstance(around, ast.Call) else None
    return str(getattr(function, "attr", getattr(function, "id", ""))).endswith("clip_grad_norm_")
