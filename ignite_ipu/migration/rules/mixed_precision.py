"""autocast, GradScaler, and values of Ignite's amp_mode and scaler that an IPU has not.

PopTorch 3.3 has no autocast, and a GradScaler works on gradients that never reach the host.

Remedy: Switch them off beside an IPU, enabled=is_native(), which `ignite-ipu migrate` does: the step then runs in
single precision. Or give create_ipu_trainer amp_mode="amp", which multiplies in half precision, with loss_scaling or
scaler=True for the loss; or train in half precision with model.half().

Example:
      import torch
    + from ignite_ipu import is_native

    - scaler = torch.cuda.amp.GradScaler()
    + scaler = torch.cuda.amp.GradScaler(enabled=is_native())
"""

from __future__ import annotations

from ignite_ipu.migration.analysis import precision_arguments as precision
from ignite_ipu.migration.analysis.engines import EVALUATOR_FACTORIES, TRAINER_FACTORIES
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity

SEVERITY, RUN = Severity.ERROR, Outcome.HANDLED
REWRITTEN = True


def check(program: Program) -> Hits:
    switched = {id(call) for call in precision.switchable(program) if precision.native_only(program, call)}
    switched |= precision.scalers_of_trainers(program, *TRAINER_FACTORIES)
    for call, name in program.calls("torch.amp.GradScaler", "torch.amp.autocast"):
        if id(call) not in switched:
            yield Hit(call, f"{name.rsplit('.', 1)[1]} has no counterpart on an IPU")
    for decorator, _ in program.decorators("torch.amp.autocast"):
        yield Hit(decorator, "autocast has no counterpart on an IPU")
    for call, name in program.calls(*TRAINER_FACTORIES, *EVALUATOR_FACTORIES):
        for value, text in precision.refused_precision(program, call, name):
            yield Hit(value, text, run=Outcome.REFUSED)
