"""Checkpoints that are read back to where they were written from."""

from __future__ import annotations

from ignite_ipu.migration.analysis.names import argument
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Rule, Severity
from ignite_ipu.migration.program import Program


def check(program: Program) -> Hits:
    """Find torch.load without a place to load to."""
    for call, _ in program.calls("torch.load"):
        given = any(keyword.arg in ("map_location", None) for keyword in call.keywords)
        if argument(call, "map_location", 1) is None and not given:
            yield Hit(call, "torch.load puts tensors back on the device they were saved from")


RULE = Rule(
    name="checkpoint-device",
    severity=Severity.WARNING,
    run=Outcome.HANDLED,
    summary="torch.load without map_location.",
    rationale="A checkpoint written on a GPU can only be read without one when told where its tensors are to go.",
    remedy="Add map_location=host_device(). `ignite-ipu migrate` does it.",
    example="""\
  import torch

- state = torch.load("model.pt")
+ state = torch.load("model.pt", map_location="cpu")
""",
    check=check,
)
