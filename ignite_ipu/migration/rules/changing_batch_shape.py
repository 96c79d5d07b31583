"""Example batches that differ in shape.

A program is compiled for one shape. Every further shape is another program, which takes minutes to compile for IPUs, or
is refused.

Remedy: Pad to one length in the collate_fn, or sort the data into a few lengths.

Example:
      import torch
      from torch import nn


      def make():
          model = nn.Sequential(nn.Linear(4, 2), nn.Flatten(), nn.AdaptiveAvgPool1d(2))
          optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    -     batches = [(torch.ones(8, length, 4), torch.zeros(8, 2)) for length in (3, 5)]
    +     batches = [(torch.ones(8, length, 4), torch.zeros(8, 2)) for length in (5, 5)]
          return model, optimizer, nn.MSELoss(), batches
"""

from __future__ import annotations

from ignite_ipu.migration.findings import Outcome, Severity

SEVERITY, RUN = Severity.WARNING, Outcome.HANDLED
