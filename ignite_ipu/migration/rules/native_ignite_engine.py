"""create_supervised_trainer, create_supervised_evaluator and supervised_*_step.

Their step calls loss.backward() and optimizer.step(), which an IPU does inside one compiled program.

Remedy: Use create_ipu_trainer and create_ipu_evaluator, which take the same arguments. `ignite-ipu migrate` does it.

Example:
    - from ignite.engine import create_supervised_trainer
    + from ignite_ipu import create_ipu_trainer

    - trainer = create_supervised_trainer(model, optimizer, loss)
    + trainer = create_ipu_trainer(model, optimizer, loss)
"""

from __future__ import annotations

from ignite_ipu.migration.analysis.names import has_hidden_arguments
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity

SEVERITY, RUN = Severity.ERROR, Outcome.HANDLED
REWRITTEN = True

_FACTORIES = ("ignite.engine.create_supervised_trainer", "ignite.engine.create_supervised_evaluator")
_KINDS = ("training_step", "evaluation_step")
_STEPS = [f"ignite.engine.supervised_{kind}{variant}" for kind in _KINDS for variant in ("", "_amp", "_apex", "_tpu")]


def check(program: Program) -> Hits:
    for call, name in program.calls(*_FACTORIES, *_STEPS):
        message = f"{name.rsplit('.', 1)[1]} runs on the host, not on an IPU"
        ours = "create_ipu_trainer" if "train" in name else "create_ipu_evaluator"
        if name in _STEPS:
            yield Hit(call, message, f"Have the engine made by {ours}, which has such a step.")
        elif has_hidden_arguments(call):
            message += ", and cannot be replaced: its arguments are not written out"
            yield Hit(call, message, f"Write them out, or call {ours}, which takes the same ones.")
        else:
            yield Hit(call, message)
