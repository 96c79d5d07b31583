"""Launchers on nccl, and models wrapped for GPUs."""

from __future__ import annotations

REWRITE = "parallel-launch"


def test_auto_model(rewritten):
    """Keeps its arguments for native runs."""
    before = """\
import ignite.distributed as idist
model = idist.auto_model(Net(), sync_bn=True)
"""
    after = """\
import ignite.distributed as idist
from ignite_ipu import auto_model
model = auto_model(Net(), sync_bn=True)
"""
    assert rewritten(REWRITE, before) == after


def test_spawned_processes(rewritten):
    """Positional backends and other arguments stay."""
    before = """\
import ignite.distributed as idist
with idist.Parallel('nccl', nproc_per_node=2) as p:
    p.run(f)
"""
    after = """\
import ignite.distributed as idist
from ignite_ipu import process_backend
with idist.Parallel(process_backend("nccl"), nproc_per_node=2) as p:
    p.run(f)
"""
    assert rewritten(REWRITE, before) == after


def test_other_backends(rewritten):
    """gloo works beside IPUs, and a variable may be anything."""
    before = """\
import ignite.distributed as idist
idist.Parallel(backend='gloo')
idist.Parallel(backend=backend)
"""
    assert rewritten(REWRITE, before) == before
