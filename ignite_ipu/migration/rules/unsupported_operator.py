"""A torch operator or layer in traced code that PopTorch does not compile.

An operator without an implementation for the device stops the compilation, unless its result is a constant or not used,
which only a trace shows: so this is a warning.

Remedy: Rewrite it with supported operators, or run the model once on the emulator (`ignite-ipu check --run`) to be
sure.

In forward:
    - return torch.linalg.svd(self.layer(x)).S
    + return torch.linalg.norm(self.layer(x))
"""

from __future__ import annotations

import ast

from ignite_ipu.capabilities.traced import OPERATOR
from ignite_ipu.migration.analysis.operators import is_dynamic, is_loss, is_made_here, problem
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity, hit_of

SEVERITY, RUN = Severity.WARNING, Outcome.REFUSED


def check(program: Program) -> Hits:
    for fact in program.facts_of("call"):
        elsewhere = is_loss(fact.name) or is_dynamic(fact.name)  # other rules know more about these
        found = None if elsewhere else problem(fact.name)
        made_here = isinstance(fact.node, ast.Call) and is_made_here(program.names, fact.node)
        if found is not None and not made_here:
            message = OPERATOR.reason(fact.where, fact.name + found.detail)
            remedy = found.remedy or OPERATOR.remedy
            yield hit_of(fact, message, remedy, Outcome.HANDLED if found.is_handled else None)
    for model in program.models:
        for name, value in sorted(model.values.items()):
            layer = program.names.called(value)
            found = problem(layer) if layer is not None and layer.startswith("torch.nn.") else None
            if found is not None and not is_loss(layer or ""):
                message = f"{model.name}.{name} is a {layer}, {found.message}"
                yield Hit(value, message, found.remedy, run=Outcome.HANDLED if found.is_handled else None)
