"""torch.cuda.synchronize, empty_cache, memory statistics, events, streams, graphs.

They speak of a GPU. Beside an IPU they fail, or measure something else.

Remedy: Guard them with `if host_device().type == "cuda":`, or use ignite_ipu's profiling handlers.

Example:
      import torch
    + from ignite_ipu import host_device

    - torch.cuda.synchronize()
    + if host_device().type == "cuda":
    +     torch.cuda.synchronize()
"""

from __future__ import annotations

from ignite_ipu.capabilities import gpu_capability
from ignite_ipu.capabilities.gpu import CUDA
from ignite_ipu.migration.analysis.devices import is_guarded
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity

SEVERITY, RUN = Severity.WARNING, Outcome.HANDLED
REWRITTEN = True


def check(program: Program) -> Hits:
    for call, name in program.calls(f"{CUDA}.*"):
        known = gpu_capability(name[len(CUDA) + 1 :])
        if known.harmless or name.startswith(f"{CUDA}.amp."):
            continue
        if not is_guarded(program, call):
            yield Hit(call, f"{name} speaks to a GPU", entry=known)
        elif Outcome.of(known) is Outcome.REFUSED and "ignite_ipu" not in program.names.imports.get("host_device", ""):
            yield Hit(call, f"{name} speaks to a GPU, which `run` says there is", severity=Severity.NOTE, entry=known)
