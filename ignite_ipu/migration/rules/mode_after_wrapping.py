"""model.train() or model.eval() after poptorch.trainingModel or inferenceModel.

The wrapper took a shallow copy and reads the flags of the layers at its first call. A mode set in between reaches the
layers but not the copy. A mode set later has no effect.

Remedy: Set the mode before wrapping. `ignite-ipu migrate` does it where the two stand together.

With PopTorch:
    + model.eval()
      inference_model = poptorch.inferenceModel(model, options)
    - model.eval()
"""

from __future__ import annotations

from ignite_ipu.migration.analysis.names import argument, dotted
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity

SEVERITY, RUN = Severity.WARNING, Outcome.UNCHANGED


def check(program: Program) -> Hits:
    wrapped = {dotted(argument(call, "model", 0)): call for call in program.training.executors.values()}
    for call, name in program.method_calls("train", "eval"):
        if name in wrapped and program.follows(call, wrapped[name]):
            yield Hit(call, f"the mode of {name} is set after {name} was wrapped")
