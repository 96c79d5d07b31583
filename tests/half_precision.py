"""Requirements of tests of half precision on the host."""

from __future__ import annotations

import pytest
import torch


def computed() -> bool:
    """Return whether PyTorch has the kernels for a CPU; 2.0 has hardly one, later versions added them by and by."""
    half = torch.ones(1, 1, 1, dtype=torch.float16)
    try:
        for compute in (torch.bmm, torch.conv1d):
            compute(half, half)
        half.sin()
    except RuntimeError:
        return False
    return True


needs_half_precision = pytest.mark.skipif(
    not computed(), reason="this PyTorch cannot compute in half precision on a CPU"
)
