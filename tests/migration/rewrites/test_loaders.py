"""Loaders that hand-written training loops read drop an incomplete last batch."""

from __future__ import annotations

import pytest

from ignite_ipu.migration.migrator import migrate_source
from ignite_ipu.migration.source.file import Source

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


HELPERS = """\
from torch.utils.data import DataLoader
from data import get_loaders
from ignite_ipu import ipu_train_batch
def loader(n, **k): return DataLoader(data[:n], 8, **k)
def plain(): return DataLoader(data, 8, shuffle=True)
def dropping(): return DataLoader(data, 8, drop_last=True)
def numbers(): return [0, 1]
"""
LOOP = """\
for x, y in {}:
    ipu_train_batch(m, o, c, x, target=y)
"""
ENGINE = """\
from ignite.engine import Engine
def step(engine, batch):
    return ipu_train_batch(m, o, c, batch[0], target=batch[1])
trainer = Engine(step)
trainer.run({}, 2)
"""


@pytest.mark.parametrize("text", [LOOP, ENGINE], ids=["loop", "engine"])
@pytest.mark.parametrize(
    ("before", "data", "named"),
    [
        ("", "loader(60)", ["loader(60)"]),
        ("l = loader(60, shuffle=True)\n", "l", ["loader(60, shuffle=True)"]),
        ("", "plain()", ["plain()"]),
        ("train, test = get_loaders(4)\n", "train", ["get_loaders(4)"]),
        ("", "DataLoader(d, 8)", ["DataLoader(d, 8)"]),
        ("l = DataLoader(d, 8, **options)\n", "l", ["DataLoader(d, 8, **options)"]),
        ("l = DataLoader(d, 8)\n", "l", []),
        ("", "DataLoader(d, batch_sampler=s)", []),
        ("", "loader(60, drop_last=True)", []),
        ("", "dropping()", []),
        ("", "numbers()", []),
        ("l = DataLoader(d, 8, drop_last=True)\n", "l", []),
    ],
)
def test_loaders_that_are_made_out_of_sight(text, before, data, named):
    """A function may have other callers, and arguments other keys, so nothing is rewritten, but a person is told."""
    migration = migrate_source(Source("code.py", HELPERS + before + text.format(data)))
    remarks = [remark.message for remark in migration.remarks if "smaller last batch" in remark.message]
    assert [message.split(" is trained from")[0] for message in remarks] == named
    assert not migration.blocked


def test_an_evaluation_is_not_told_of():
    migration = migrate_source(Source("code.py", HELPERS + "for x in loader(60): pass\n"))
    assert [remark for remark in migration.remarks if remark.subject == REWRITE] == []
