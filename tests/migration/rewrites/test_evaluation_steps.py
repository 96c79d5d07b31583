"""Model calls in evaluation code become ipu_evaluate_batch."""

from __future__ import annotations

REWRITE = "evaluation-steps"


def test_decorated_functions(rewritten):
    """Several inputs, keywords, and use in an expression."""
    before = """\
import torch
model = torch.nn.Linear(2, 2)
@torch.no_grad()
def score(x, m):
    model.eval()
    return model(x, mask=m).argmax(1)
"""
    after = """\
import torch
from ignite_ipu import ipu_evaluate_batch
model = torch.nn.Linear(2, 2)
@torch.no_grad()
def score(x, m):
    model.eval()
    return ipu_evaluate_batch(model, x, mask=m).argmax(1)
"""
    assert rewritten(REWRITE, before) == after


def test_not_evaluation(rewritten):
    """Calls with gradients, or of something that is never put in evaluation mode."""
    before = """\
import torch
model = torch.nn.Linear(2, 2)
model(x)
with torch.no_grad():
    model(x)
"""
    assert rewritten(REWRITE, before) == before


def test_dictionaries(rewritten):
    """A batch that is given by keyword."""
    before = """\
import torch
model = make()
model.eval()
for batch in loader:
    with torch.no_grad():
        outputs = model(**batch)
"""
    after = """\
import torch
from ignite_ipu import ipu_evaluate_batch
model = make()
model.eval()
for batch in loader:
    with torch.no_grad():
        outputs = ipu_evaluate_batch(model, **batch)
"""
    assert rewritten(REWRITE, before) == after
