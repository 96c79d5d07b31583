"""create_supervised_evaluator becomes create_ipu_evaluator, without the device."""

from __future__ import annotations

REWRITE = "ignite-evaluators"


def test_keywords(rewritten):
    """Metrics and transforms stay."""
    before = """\
from ignite.engine import create_supervised_evaluator
e = create_supervised_evaluator(m, metrics=ms, device=d, prepare_batch=f)
"""
    after = """\
from ignite_ipu import create_ipu_evaluator
e = create_ipu_evaluator(m, metrics=ms, prepare_batch=f)
"""
    assert rewritten(REWRITE, before) == after


def test_mixed_precision(rewritten):
    """Products in half precision are the evaluator's too; another library's are not."""
    before = """\
from ignite.engine import create_supervised_evaluator
e = create_supervised_evaluator(m, amp_mode='amp')
"""
    after = """\
from ignite_ipu import create_ipu_evaluator
e = create_ipu_evaluator(m, amp_mode='amp')
"""
    assert rewritten(REWRITE, before) == after
    assert rewritten(REWRITE, before.replace("'amp'", "'apex'")) == before.replace("'amp'", "'apex'")
