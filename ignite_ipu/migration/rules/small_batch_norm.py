"""BatchNorm in a model of a file whose loaders or PopTorch options make micro-batches of fewer than 16 samples.

On an IPU statistics are taken over one micro-batch only, never over accumulation steps, device iterations or replicas,
and micro-batches are small so that they fit.

Remedy: Use GroupNorm or LayerNorm, or keep the micro-batch large enough.

Example:
      import torch

    - model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    + model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GroupNorm(2, 4))
      loader = torch.utils.data.DataLoader(data, batch_size=4)
"""

from __future__ import annotations

from ignite_ipu.migration.analysis.names import argument, constant
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity

SEVERITY, RUN = Severity.NOTE, Outcome.HANDLED

_SMALL = 16


def check(program: Program) -> Hits:
    sizes = [constant(argument(call, "batch_size", 1)) for call, _ in program.calls("torch.utils.data.DataLoader")]
    sizes += [constant(argument(call, "batch_size", 2)) for call, _ in program.calls("poptorch.DataLoader")]
    small = sorted(size for size in sizes if isinstance(size, int) and 1 < size < _SMALL)
    if not small:
        return
    for call, name in program.calls("torch.nn.BatchNorm1d", "torch.nn.BatchNorm2d", "torch.nn.BatchNorm3d"):
        yield Hit(call, f"{name.rsplit('.', 1)[1]} takes its statistics over micro-batches of {small[0]} samples")
