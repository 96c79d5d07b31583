"""Options with gradientAccumulation handed to poptorch.inferenceModel.

There are no gradients to accumulate in inference; PopTorch raises when the wrapper is made.

Remedy: Make separate options for inference, and use deviceIterations there.

With PopTorch:
    - options.Training.gradientAccumulation(4)
    + options.deviceIterations(4)
      inference_model = poptorch.inferenceModel(model, options)
"""

from __future__ import annotations

import ast

from ignite_ipu.migration.analysis.names import argument, constant, dotted, owner_of
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity

SEVERITY, RUN = Severity.ERROR, Outcome.REFUSED


def check(program: Program) -> Hits:
    accumulating = set()
    for call in program.nodes(ast.Call):
        owner = owner_of(call, "gradientAccumulation")
        if owner is not None and constant(argument(call, "gradient_accumulation", 0)) != 1:
            accumulating.add(owner.rsplit(".Training", 1)[0])
    for call, _ in program.calls("poptorch.inferenceModel"):
        options = dotted(argument(call, "options", 1))
        if options in accumulating:
            yield Hit(call, f"{options} accumulates gradients, which inference refuses")
