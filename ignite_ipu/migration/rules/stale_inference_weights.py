"""An inference executor made before the training executor of the same model.

Only an inference executor that was made after the training one takes over its new weights; an earlier one keeps those
of its first call.

Remedy: Make the training executor first, or call inference_model.copyWeightsToDevice() before evaluating.

With PopTorch:
      optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    + training_model = poptorch.trainingModel(model, options, optimizer)
      inference_model = poptorch.inferenceModel(model)
    - training_model = poptorch.trainingModel(model, options, optimizer)
"""

from __future__ import annotations

from ignite_ipu.migration.analysis.names import argument, dotted
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity

SEVERITY, RUN = Severity.WARNING, Outcome.UNCHANGED


def check(program: Program) -> Hits:
    if any(True for _ in program.method_calls("copyWeightsToDevice")):
        return
    training = {dotted(argument(call, "model", 0)): call for call, _ in program.calls("poptorch.trainingModel")}
    inference = {dotted(argument(call, "model", 0)): call for call, _ in program.calls("poptorch.inferenceModel")}
    for name, call in inference.items():
        if name is not None and name in training and program.follows(training[name], call):
            yield Hit(call, f"the inference executor of {name} is made before its training executor")
