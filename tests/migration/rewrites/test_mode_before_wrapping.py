"""PopTorch code: a mode statement right behind the wrapping moves in front of it."""

from __future__ import annotations

REWRITE = "mode-before-wrapping"


def test_comments_stay_in_place(rewritten):
    """Only the statements change places."""
    before = """\
import poptorch
# wrap
t = poptorch.trainingModel(model, options, opt)
# mode
model.train()
"""
    after = """\
import poptorch
# wrap
model.train()
# mode
t = poptorch.trainingModel(model, options, opt)
"""
    assert rewritten(REWRITE, before) == after


def test_further_apart(rewritten):
    """Something in between may use the wrapper."""
    before = """\
import poptorch
t = poptorch.inferenceModel(model)
t(x)
model.eval()
"""
    assert rewritten(REWRITE, before) == before


def test_another_model(rewritten):
    """Its mode is its own business."""
    before = """\
import poptorch
t = poptorch.inferenceModel(model)
other.eval()
"""
    assert rewritten(REWRITE, before) == before
