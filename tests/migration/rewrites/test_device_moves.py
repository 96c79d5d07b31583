"""`.cuda()` becomes `.to(host_device())`, and orders to a GPU are guarded."""

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
    """A number is for native runs; a guarded move happens with a GPU only."""
    before = """\
import torch
x.cuda(rank, non_blocking=True)
x.cuda(device=args.gpu)
if use == 'cuda':
    y.cuda()
"""
    after = before.replace("import torch\n", "import torch\nfrom ignite_ipu import host_device\n")
    after = after.replace("x.cuda(rank,", "x.to(host_device(rank),")
    assert rewritten(REWRITE, before) == after.replace("x.cuda(device=args.gpu)", "x.to(host_device(args.gpu))")


def test_orders(rewritten):
    """They are given where there is a GPU; results of functions of torch.cuda are left to the reader."""
    before = """\
import torch
def stop():
    # wait
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()
"""
    after = """\
import torch
from ignite_ipu import host_device
def stop():
    # wait
    if host_device().type == "cuda":
        torch.cuda.synchronize()
    return torch.cuda.memory_allocated()
"""
    assert rewritten(REWRITE, before) == after
    assert rewritten(REWRITE, after) == after
