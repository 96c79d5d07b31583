"""PopTorch code: batches of an asynchronous loader that are kept are reported."""

from __future__ import annotations

RULE = "async-loader-labels"


def test_kept(lines):
    """The loader writes into them."""
    code = """
        import poptorch
        loader = poptorch.DataLoader(poptorch.Options(), d, mode=poptorch.DataLoaderMode.Async)
        kept = []
        for x, y in loader:
            kept.append(y)
    """
    assert lines(RULE, code) == [5]


def test_cloned_or_synchronous(lines):
    """A clone is safe, and so is a synchronous loader."""
    code = """
        import poptorch
        loader = poptorch.DataLoader(poptorch.Options(), d, mode=poptorch.DataLoaderMode.Async)
        kept = []
        for x, y in loader:
            kept.append(y.clone())
        other = poptorch.DataLoader(poptorch.Options(), d)
        for x, y in other:
            kept.append(y)
    """
    assert lines(RULE, code) == []
