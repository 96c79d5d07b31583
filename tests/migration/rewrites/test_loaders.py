"""Loaders that hand-written training loops read drop an incomplete last batch."""

from __future__ import annotations

REWRITE = "loaders"


def test_explicit_false(rewritten):
    """Turned round."""
    before = """\
import torch
from ignite_ipu import ipu_train_batch
l = torch.utils.data.DataLoader(d, 8, drop_last=False)
for x, y in l:
    ipu_train_batch(m, o, c, x, target=y)
"""
    after = """\
import torch
from ignite_ipu import ipu_train_batch
l = torch.utils.data.DataLoader(d, 8, drop_last=True)
for x, y in l:
    ipu_train_batch(m, o, c, x, target=y)
"""
    assert rewritten(REWRITE, before) == after


def test_engines_and_evaluation(rewritten):
    """An Ignite engine of ours replaces its loader itself, and evaluation sees every sample."""
    before = """\
from torch.utils.data import DataLoader
from ignite_ipu import create_ipu_trainer
a = DataLoader(d)
trainer = create_ipu_trainer(m, o, l)
trainer.run(a)
for x in DataLoader(e):
    pass
"""
    assert rewritten(REWRITE, before) == before


def test_batch_samplers(rewritten):
    """Those decide for themselves."""
    before = """\
from torch.utils.data import DataLoader
from ignite_ipu import ipu_train_batch
l = DataLoader(d, batch_sampler=s)
for x, y in l:
    ipu_train_batch(m, o, c, x, target=y)
"""
    assert rewritten(REWRITE, before) == before
