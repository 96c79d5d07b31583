"""An Accelerator of accelerate is reported, an IPUAccelerator is not."""

from __future__ import annotations

RULE = "native-accelerator"


def test_accelerators(lines):
    """Under any import."""
    code = """
        import accelerate
        from accelerate import Accelerator as A
        first = accelerate.Accelerator()
        second = A(gradient_accumulation_steps=2)
    """
    assert lines(RULE, code) == [3, 4]


def test_ours(lines):
    assert lines(RULE, "from ignite_ipu import IPUAccelerator\naccelerator = IPUAccelerator()") == []
