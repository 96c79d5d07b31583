"""Models in shared memory are reported."""

from __future__ import annotations

RULE = "shared-memory-training"


def test_share_memory(lines):
    """The mark of hogwild."""
    code = """
        model.share_memory()
    """
    assert lines(RULE, code) == [1]


def test_tensors(lines):
    """Sharing one tensor in place is something else."""
    code = """
        counter.share_memory_()
    """
    assert lines(RULE, code) == []
