"""A setter on poptorch.Options after they were handed to a wrapper or a DataLoader.

Options freeze when they are used; a later change raises.

Remedy: Set everything first, or change options.clone().

With PopTorch:
      optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    + options.deviceIterations(4)
      training_model = poptorch.trainingModel(model, options, optimizer)
    - options.deviceIterations(4)
"""

from __future__ import annotations

import ast
from typing import Dict

from ignite_ipu.migration.analysis.names import argument, dotted
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity

SEVERITY, RUN = Severity.ERROR, Outcome.REFUSED

_USES = {
    "poptorch.trainingModel": ("options", 1),
    "poptorch.inferenceModel": ("options", 1),
    "poptorch.DataLoader": ("options", 0),
}
_READERS = {"clone", "toDict", "exists", "defaultOutputMode"}


def check(program: Program) -> Hits:
    made = {target for target, value in program.assigned if program.names.called(value) == "poptorch.Options"}
    used: Dict[str, ast.Call] = {}
    for call, name in program.calls(*_USES):
        target = dotted(argument(call, *_USES[name]))
        if target is not None and target in made:
            used.setdefault(target, call)
    for call in program.nodes(ast.Call):
        function = call.func
        owner = dotted(function.value) if isinstance(function, ast.Attribute) else None
        if owner is None or not isinstance(function, ast.Attribute) or function.attr in _READERS:
            continue
        options_name = next((name for name in used if f"{owner}.".startswith(f"{name}.")), None)
        if options_name is None:
            continue
        use = used[options_name]
        made_again = program.values[options_name]
        if program.follows(call, use) and not any(use.lineno < each.lineno <= call.lineno for each in made_again):
            yield Hit(call, f"{options_name} was frozen in line {program.source.locate(use.lineno)[1]}")
