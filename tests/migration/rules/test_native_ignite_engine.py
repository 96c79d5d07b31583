"""Ignite's factories are reported, ours are not."""

from __future__ import annotations

from ignite_ipu.migration.checker import check_source
from ignite_ipu.migration.rules import all_rules
from ignite_ipu.migration.source.file import Source

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


def test_what_keeps_migrate_from_replacing_them():
    code = """\
from ignite.engine import Engine, create_supervised_evaluator, supervised_training_step
create_supervised_evaluator(model, **options)
Engine(supervised_training_step(model, optimizer, loss_fn))
"""
    hidden, step = check_source(Source("code.py", code), [all_rules()[RULE]])[0]
    assert hidden.message.endswith("and cannot be replaced: its arguments are not written out")
    assert step.remedy == "Have the engine made by create_ipu_trainer, which has such a step."
