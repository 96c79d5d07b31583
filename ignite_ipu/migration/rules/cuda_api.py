"""Questions and orders to the CUDA runtime."""

from __future__ import annotations

import ast
from typing import Iterator

from ignite_ipu.migration.findings import Hit, Rule, Severity
from ignite_ipu.migration.program import Program

# Harmless without a GPU, or other rules' business.
_LEFT_OUT = {
    "torch.cuda.is_available",
    "torch.cuda.manual_seed",
    "torch.cuda.manual_seed_all",
    "torch.cuda.set_device",
    "torch.cuda.current_device",
}


def check(program: Program) -> Iterator[Hit]:
    """Find unguarded calls of torch.cuda."""
    for call, name in program.calls("torch.cuda.*"):
        if name in _LEFT_OUT or name.startswith("torch.cuda.amp."):
            continue
        if not any(isinstance(above, ast.If) and _asks(program, above.test) for above in program.ancestors(call)):
            yield Hit(call, f"{name} speaks to a GPU")


def _asks(program: Program, test: ast.expr) -> bool:
    for part in ast.walk(test):
        if program.names.called(part) in ("torch.cuda.is_available", "ignite_ipu.host_device"):
            return True
        if isinstance(part, ast.Constant) and part.value == "cuda":
            return True
    return False


RULE = Rule(
    name="cuda-api",
    severity=Severity.WARNING,
    summary="torch.cuda.synchronize, empty_cache, memory statistics, events, streams, graphs.",
    rationale="They speak of a GPU. Beside an IPU they fail, or measure something else.",
    remedy='Guard them with `if host_device().type == "cuda":`, or use ignite_ipu\'s profiling handlers.',
    bad="""\
import torch

torch.cuda.synchronize()
""",
    good="""\
import torch
from ignite_ipu import host_device

if host_device().type == "cuda":
    torch.cuda.synchronize()
""",
    check=check,
)
