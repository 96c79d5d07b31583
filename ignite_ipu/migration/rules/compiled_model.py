"""torch.compile, torch.jit.script and torch.jit.trace.

PopTorch traces Python. It cannot trace a module that TorchScript runs, or a function that torch.compile has made. A
model in torch.compile's wrapper trains without the compiler: PopTorch compiles it. The wrapper keeps its names.

Remedy: Leave the compiler out of functions, and hand the plain module to the trainer instead of TorchScript's.

Example:
      import torch

    - model = torch.compile(torch.nn.Linear(2, 2))
    + model = torch.nn.Linear(2, 2)
"""

from __future__ import annotations

import ast

from ignite_ipu.migration.analysis.devices import is_native_alone
from ignite_ipu.migration.analysis.names import argument, dotted
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity

SEVERITY, RUN = Severity.ERROR, Outcome.HANDLED
REWRITTEN = True


def check(program: Program) -> Hits:
    names = ("torch.compile", "torch.jit.script", "torch.jit.trace")
    functions = {function.name for function in program.nodes(ast.FunctionDef)}
    for call, name in program.calls(*names):
        if is_native_alone(program, call):
            continue
        if name == "torch.compile" and dotted(argument(call, "model", 0)) not in functions:
            message = "torch.compile is left out of a model: PopTorch compiles it"
            yield Hit(call, message, "Nothing has to be done.", Severity.NOTE)
            continue
        # An exported model is copied; a called one is not.
        outcome = Outcome.REFUSED if ".jit." in name and _is_called(program, call) else Outcome.HANDLED
        yield Hit(call, f"{name} makes a model that PopTorch cannot trace", run=outcome)
    for decorator, name in program.decorators(*names):
        yield Hit(decorator, f"{name} makes code that PopTorch cannot trace")


def _is_called(program: Program, made: ast.Call) -> bool:
    names = {target for target, value in program.assigned if value is made}
    return any(dotted(call.func) in names for call in program.nodes(ast.Call))
