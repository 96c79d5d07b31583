"""Number types that an IPU lacks are reported."""

from __future__ import annotations

RULE = "unsupported-dtype"


def test_dtypes_and_conversions(lines):
    """Attributes of torch, and conversions of a model; the host computes in any format."""
    code = """
        import torch
        m = torch.nn.Sequential()
        x = torch.zeros(2, dtype=torch.float64)
        y = x.to(torch.bfloat16)
        m.double()
        m.to(torch.bfloat16)
    """
    assert lines(RULE, code) == [3, 5, 6]


def test_half_and_float(lines):
    """Those exist."""
    code = """
        import torch
        m = torch.nn.Sequential().half()
        x = torch.zeros(2, dtype=torch.float16)
    """
    assert lines(RULE, code) == []


def test_a_format_that_a_test_chooses(findings):
    """No text shows which one it is: a note, as for a flag of the command line."""
    code = """
        import torch
        dtype = torch.bfloat16 if args.bf16 else torch.float32
    """
    (found,) = findings(RULE, code)
    assert found.severity.value == "note"
