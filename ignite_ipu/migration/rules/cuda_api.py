"""Questions and orders to the CUDA runtime."""

from __future__ import annotations

from ignite_ipu.migration.analysis.devices import is_guarded
from ignite_ipu.migration.findings import Hit, Hits, Rule, Severity
from ignite_ipu.migration.program import Program

# Harmless without a GPU, or other rules' business.
_LEFT_OUT = {
    "torch.cuda.is_available",
    "torch.cuda.manual_seed",
    "torch.cuda.manual_seed_all",
    "torch.cuda.set_device",
    "torch.cuda.current_device",
}


def check(program: Program) -> Hits:
    """Find unguarded calls of torch.cuda."""
    for call, name in program.calls("torch.cuda.*"):
        if name in _LEFT_OUT or name.startswith("torch.cuda.amp."):
            continue
        if not is_guarded(program, call):
            yield Hit(call, f"{name} speaks to a GPU")


RULE = Rule(
    name="cuda-api",
    severity=Severity.WARNING,
    summary="torch.cuda.synchronize, empty_cache, memory statistics, events, streams, graphs.",
    rationale="They speak of a GPU. Beside an IPU they fail, or measure something else.",
    remedy='Guard them with `if host_device().type == "cuda":`, or use ignite_ipu\'s profiling handlers.',
    example="""\
  import torch
+ from ignite_ipu import host_device

- torch.cuda.synchronize()
+ if host_device().type == "cuda":
+     torch.cuda.synchronize()
""",
    check=check,
)
