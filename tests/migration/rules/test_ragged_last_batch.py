"""Training loaders that keep an incomplete batch are reported."""

from __future__ import annotations

RULE = "ragged-last-batch"


LOOP = """
    import torch
    from ignite_ipu import ipu_train_batch
    loader = torch.utils.data.DataLoader(data, batch_size=8{more})
    for x, y in loader:
        _, loss = ipu_train_batch(model, optimizer, criterion, x, target=y)
"""


def test_loops(lines):
    """A loader of batches that are given to one compiled program."""
    assert lines(RULE, LOOP.format(more="")) == [3]


def test_captured_loops(lines):
    """They train the last batch by another program."""
    code = """
        import torch
        from ignite_ipu import ipu_prepare
        loader = torch.utils.data.DataLoader(data, batch_size=8)
        optimizer = ipu_prepare(torch.optim.SGD(model.parameters(), lr=0.1), model)
        for x, y in loader:
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
    """
    assert lines(RULE, code) == []


def test_dropped_or_evaluated(lines):
    """drop_last=True, batch samplers, and loaders that only evaluate."""
    test = "    test = torch.utils.data.DataLoader(data)\n    for x, y in test: pass\n"
    assert lines(RULE, LOOP.format(more=", drop_last=True") + test) == []
    assert lines(RULE, LOOP.format(more=", batch_sampler=sampler")) == []
