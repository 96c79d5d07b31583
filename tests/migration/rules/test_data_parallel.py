"""Data parallelism over GPUs is reported."""

from __future__ import annotations

RULE = "data-parallel"


def test_wrappers_and_launchers(lines):
    """Under their short and long names."""
    code = """
        import torch, ignite.distributed as idist
        from torch.nn.parallel import DistributedDataParallel as DDP
        a = torch.nn.DataParallel(m)
        b = DDP(m)
        c = idist.auto_model(m)
        with idist.Parallel("nccl") as parallel: pass
        torch.distributed.init_process_group("nccl")
        d = torch.nn.SyncBatchNorm.convert_sync_batchnorm(m)
    """
    assert lines(RULE, code) == [3, 4, 5, 6, 7, 8]


def test_gloo_and_loaders(lines):
    """Several processes as such are fine."""
    code = """
        import torch, ignite.distributed as idist
        with idist.Parallel(backend='gloo') as p: pass
        idist.auto_dataloader(d)
        torch.distributed.init_process_group(backend)
        model = parallel_model(torch.nn.DataParallel, m)
    """
    assert lines(RULE, code) == []
