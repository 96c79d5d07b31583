"""Launchers on nccl, and models wrapped for GPUs."""

from __future__ import annotations

import pytest

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


@pytest.mark.parametrize(
    ("wrapped", "after"),
    [
        ("nn.DataParallel(net)", "parallel_model(nn.DataParallel, net)"),
        (
            "nn.parallel.DistributedDataParallel(net, device_ids=[rank])",
            "parallel_model(nn.parallel.DistributedDataParallel, net, device_ids=[rank])",
        ),
        (
            "nn.SyncBatchNorm.convert_sync_batchnorm(net)",
            "parallel_model(nn.SyncBatchNorm.convert_sync_batchnorm, net)",
        ),
    ],
)
def test_wrappers(rewritten, wrapped, after):
    """They stay wrappers, with their arguments for native runs."""
    result = rewritten(REWRITE, f"from torch import nn\nmodel = {wrapped}\n")
    assert result == f"from torch import nn\nfrom ignite_ipu import parallel_model\nmodel = {after}\n"
    assert rewritten(REWRITE, result) == result


def test_other_backends(rewritten):
    """gloo works beside IPUs, and a variable may be anything."""
    before = """\
import ignite.distributed as idist
idist.Parallel(backend='gloo')
idist.Parallel(backend=backend)
"""
    assert rewritten(REWRITE, before) == before
