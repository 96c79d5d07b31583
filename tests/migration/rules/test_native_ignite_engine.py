"""Ignite's factories are reported, ours are not."""

from __future__ import annotations

RULE = "native-ignite-engine"


def test_factories(lines):
    """Under any import."""
    code = """
        import ignite.engine as e
        from ignite.engine import create_supervised_evaluator as ev
        e.create_supervised_trainer(m, o, l)
        ev(m)
    """
    assert lines(RULE, code) == [3, 4]


def test_ours(lines):
    """Those run on the IPU."""
    code = """
        from ignite_ipu import create_ipu_trainer
        create_ipu_trainer(m, o, l)
    """
    assert lines(RULE, code) == []
