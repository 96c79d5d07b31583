"""`.cuda()` becomes `.to(host_device())` where no GPU is chosen by number."""

from __future__ import annotations

REWRITE = "device-moves"


def test_in_a_chain(rewritten):
    """The rest of the expression stays."""
    before = """\
y = f(x.cuda(), model.eval().cuda(non_blocking=True)).sum()
"""
    after = """\
from ignite_ipu import host_device
y = f(x.to(host_device()), model.eval().to(host_device(), non_blocking=True)).sum()
"""
    assert rewritten(REWRITE, before) == after


def test_default_gpu(rewritten):
    """cuda(0) and cuda(None) are the default."""
    before = """\
x.cuda(0)
y.cuda(None)
"""
    after = """\
from ignite_ipu import host_device
x.to(host_device())
y.to(host_device())
"""
    assert rewritten(REWRITE, before) == after


def test_numbered_and_guarded(rewritten):
    """A GPU chosen by number has no counterpart; a guarded move happens with a GPU only."""
    before = """\
import torch
x.cuda(rank)
if use == 'cuda':
    y.cuda()
"""
    assert rewritten(REWRITE, before) == before


def test_torch_cuda(rewritten):
    """The module torch.cuda is something else."""
    before = """\
import torch
torch.cuda.synchronize()
"""
    assert rewritten(REWRITE, before) == before
