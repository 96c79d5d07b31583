"""torch.load without map_location.

A checkpoint written on a GPU can only be read without one if `map_location` names the device of its tensors.

Remedy: Add map_location=host_device(). `ignite-ipu migrate` does it.

Example:
      import torch

    - state = torch.load("model.pt")
    + state = torch.load("model.pt", map_location="cpu")
"""

from __future__ import annotations

from ignite_ipu.migration.analysis.names import argument
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity

SEVERITY, RUN = Severity.WARNING, Outcome.HANDLED


def check(program: Program) -> Hits:
    for call, _ in program.calls("torch.load"):
        given = any(keyword.arg in ("map_location", None) for keyword in call.keywords)
        if argument(call, "map_location", 1) is None and not given:
            yield Hit(call, "torch.load puts tensors back on the device they were saved from")
