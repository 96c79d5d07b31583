"""Values that a model returns and gets back are reported."""

from __future__ import annotations

RULE = "state-across-batches"


LOOP = """
    import poptorch
    training_model = poptorch.trainingModel(model)
    for x, y in loader:
        {first}
        out, hidden = {model}(x, hidden)
"""


def test_hidden_state(lines):
    """A call of the executor may be many steps."""
    assert lines(RULE, LOOP.format(first="pass", model="training_model")) == [5]


def test_fresh_state(lines):
    """A state made anew for each batch is an input like any other."""
    assert lines(RULE, LOOP.format(first="hidden = torch.zeros(4)", model="training_model")) == []


def test_captured_loops(lines):
    """A loop whose calls are recorded may carry any state."""
    assert lines(RULE, LOOP.format(first="pass", model="model")) == []
