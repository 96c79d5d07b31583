"""`.cuda()`, `.to("cuda")` and `device="cuda"`, and devices chosen by torch.cuda.is_available().

Where there is an IPU, models and batches stay on the host's CPU and PopTorch moves them; a GPU that happens to be in
the machine must not get them instead.

Remedy: Use ignite_ipu.host_device() for the device: the CPU beside an IPU, and the GPU in a native run. `ignite-ipu
migrate` does it.

Example:
      import torch
    + from ignite_ipu import host_device

    - model = torch.nn.Linear(2, 2).to("cuda")
    + model = torch.nn.Linear(2, 2).to(host_device())
"""

from __future__ import annotations

import ast
import builtins

from ignite_ipu.migration.analysis.devices import gpu_name, is_guarded
from ignite_ipu.migration.analysis.names import owner_of
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity

SEVERITY, RUN = Severity.ERROR, Outcome.HANDLED
REWRITTEN = True

# Arguments of host_device itself, and switches of mixed precision, which have another rule.
_OTHERS = ("ignite_ipu.host_device", "torch.amp.autocast", "torch.amp.GradScaler")


def check(program: Program) -> Hits:
    for call, _ in program.method_calls("cuda"):
        if program.names.resolve(call.func) is None and not is_guarded(program, call):
            yield Hit(call, ".cuda() moves to a GPU")
    for call, _ in program.calls("torch.cuda.is_available"):
        yield Hit(call, "a device is chosen by asking for a GPU")
    for call, name in program.calls("ignite.distributed.device", "torch.cuda.current_device"):
        yield Hit(call, f"{name}() is a GPU where there is one")
    for call, _ in program.calls("torch.cuda.set_device"):
        if not is_guarded(program, call):
            yield Hit(call, "torch.cuda.set_device chooses a GPU", "Leave it out; an IPU has no current device.")
    for node in [*program.nodes(ast.Constant), *program.nodes(ast.JoinedStr)]:
        gpu = gpu_name(program, node)
        if gpu is not None and _names_a_device(program, node) and not is_guarded(program, node):
            yield Hit(node, f"{gpu} is a GPU")


def _names_a_device(program: Program, node: ast.expr) -> bool:
    """Leave out the tests (`device.type == "cuda"`) and the arguments of host_device itself."""
    for above in program.ancestors(node):
        if isinstance(above, (ast.Compare, ast.Dict, ast.JoinedStr)):
            return False
        if isinstance(above, ast.Call) and owner_of(above, "format") is None:
            name = program.names.called(above)
            return name not in _OTHERS and not hasattr(builtins, name or "")
        if isinstance(above, ast.stmt):
            return isinstance(above, (ast.Assign, ast.AnnAssign, ast.Return, ast.FunctionDef))
    return False
