"""BatchNorm beside small micro-batches is reported as a note."""

from __future__ import annotations

RULE = "small-batch-norm"


def test_small_loader(lines):
    """Statistics over four samples."""
    code = """
        import torch
        m = torch.nn.BatchNorm1d(4)
        l = torch.utils.data.DataLoader(d, batch_size=4)
    """
    assert lines(RULE, code) == [2]


def test_large_or_unknown(lines):
    """Enough samples, or no number in sight."""
    code = """
        import torch
        m = torch.nn.BatchNorm1d(4)
        l = torch.utils.data.DataLoader(d, batch_size=64)
        k = torch.utils.data.DataLoader(d, batch_size=n)
    """
    assert lines(RULE, code) == []
