"""torch.load without map_location is reported."""

from __future__ import annotations

RULE = "checkpoint-device"


def test_without(lines):
    """It would need the device the file was written on."""
    code = """
        import torch
        torch.load('a')
        torch.load('a', weights_only=True)
    """
    assert lines(RULE, code) == [2, 3]


def test_with_one(lines):
    """By keyword, by position, or somewhere in **kwargs."""
    code = """
        import torch
        torch.load('a', map_location='cpu')
        torch.load('a', 'cpu')
        torch.load('a', **kw)
    """
    assert lines(RULE, code) == []
