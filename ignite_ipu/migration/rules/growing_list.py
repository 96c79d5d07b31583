"""A model or a hook that appends tensors to a list from outside, which no iteration clears.

A compiled program returns the tensors of one call. A list that still has those of the previous call would need them
from several, so the second call is refused.

Remedy: Clear the list before each call of the model, and keep its tensors in the loop if they are needed later.

Example:
      import torch
      from torch import nn

      model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
      features, kept = [], []
      model[0].register_forward_hook(lambda layer, given, out: features.append(out.detach()))
      optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
      for x, y in loader:
    +     features.clear()
          optimizer.zero_grad()
          loss = nn.functional.cross_entropy(model(x), y)
          loss.backward()
          optimizer.step()
    +     kept += features
"""

from __future__ import annotations

from ignite_ipu.capabilities.traced import LIST
from ignite_ipu.migration.analysis.kept_results import growing_lists
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity

SEVERITY, RUN = Severity.ERROR, Outcome.REFUSED


def check(program: Program) -> Hits:
    for node, name in growing_lists(program.training):
        yield Hit(node, LIST.reason("Each call of the model", name))
