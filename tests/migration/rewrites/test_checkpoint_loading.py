"""torch.load gets a map_location unless it has one."""

from __future__ import annotations

REWRITE = "checkpoint-loading"


def test_several_arguments(rewritten):
    """The new argument comes last, in the style of the call."""
    before = """\
import torch
state = torch.load(
    path,
    weights_only=True,
)
"""
    after = """\
import torch
from ignite_ipu import host_device
state = torch.load(
    path,
    weights_only=True,
    map_location=host_device(),
)
"""
    assert rewritten(REWRITE, before) == after


def test_given(rewritten):
    """By keyword, position or **."""
    before = """\
import torch
torch.load(p, map_location=d)
torch.load(p, d)
torch.load(p, **kw)
json.load(f)
"""
    assert rewritten(REWRITE, before) == before
