"""torch.compile, torch.jit.script and torch.jit.trace.

PopTorch traces the plain module itself and cannot trace one that torch.compile or TorchScript has taken over.

Remedy: Hand the plain module to the trainer; compiling is what the IPU back end does anyway.

Example:
      import torch

    - model = torch.compile(torch.nn.Linear(2, 2))
    + model = torch.nn.Linear(2, 2)
"""

from __future__ import annotations

import ast

from ignite_ipu.migration.analysis.devices import is_native_alone
from ignite_ipu.migration.analysis.names import dotted
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity

SEVERITY, RUN = Severity.ERROR, Outcome.HANDLED
REWRITTEN = True


def check(program: Program) -> Hits:
    names = ("torch.compile", "torch.jit.script", "torch.jit.trace")
    for call, name in program.calls(*names):
        if is_native_alone(program, call):
            continue
        # Of what is exported a copy is made; what is called is not.
        outcome = Outcome.REFUSED if ".jit." in name and _is_called(program, call) else Outcome.HANDLED
        yield Hit(call, f"{name} makes a model that PopTorch cannot trace", run=outcome)
    for decorator, name in program.decorators(*names):
        yield Hit(decorator, f"{name} makes code that PopTorch cannot trace")


def _is_called(program: Program, made: ast.Call) -> bool:
    names = {target for target, value in program.assigned if value is made}
    return any(dotted(call.func) in names for call in program.nodes(ast.Call))
