"""Calls of torch.cuda are reported unless they are guarded."""

from __future__ import annotations

RULE = "cuda-api"


def test_unguarded(lines):
    """They fail, or measure a GPU."""
    code = """
        import torch
        torch.cuda.synchronize()
        n = torch.cuda.device_count()
    """
    assert lines(RULE, code) == [2, 3]


def test_guarded(lines):
    """Behind a question they only run where there is a GPU."""
    code = """
        import torch
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        use = device.type == 'cuda'
        if device.type == 'cuda':
            torch.cuda.empty_cache()
    """
    assert lines(RULE, code) == []


def test_seeds(lines):
    """Seeding a GPU that is not there does nothing."""
    code = """
        import torch
        torch.cuda.manual_seed_all(0)
    """
    assert lines(RULE, code) == []
