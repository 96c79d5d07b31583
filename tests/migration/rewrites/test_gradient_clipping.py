"""clip_grad_norm_ of torch becomes the one that clips on the device, and no other clipping does."""

from __future__ import annotations

REWRITE = "gradient-clipping"


def test_every_spelling(rewritten):
    before = """\
import torch
from torch import nn
from torch.nn.utils.clip_grad import clip_grad_norm_ as clip
norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
nn.utils.clip_grad_norm_(model.parameters(), 1.0, norm_type=2)
clip(model.parameters(), limit)
"""
    after = """\
import torch
from torch import nn
from ignite_ipu import ipu_clip_grad_norm_
norm = ipu_clip_grad_norm_(model.parameters(), max_norm=1.0)
ipu_clip_grad_norm_(model.parameters(), 1.0, norm_type=2)
ipu_clip_grad_norm_(model.parameters(), limit)
"""
    assert rewritten(REWRITE, before) == after


def test_others_stay(rewritten):
    """By value there is no counterpart, and accelerate's own is IPUAccelerator's."""
    before = "import torch\ntorch.nn.utils.clip_grad_value_(p, 1.0)\naccelerator.clip_grad_norm_(p, 1.0)\n"
    assert rewritten(REWRITE, before) == before
