"""Autocast and gradient scalers are reported."""

from __future__ import annotations

RULE = "mixed-precision"


def test_every_spelling(lines):
    """Old and new names, decorators, and Ignite's switches."""
    code = """
        import torch
        from torch.cuda.amp import GradScaler, autocast
        from ignite.engine import create_supervised_trainer
        s = GradScaler()
        with autocast(): pass
        with torch.autocast("cuda"): pass
        create_supervised_trainer(m, o, l, amp_mode="apex", scaler=s)
        t = torch.amp.GradScaler("cuda")
    """
    assert lines(RULE, code) == [5, 6, 7, 8]


def test_what_ipu_trainers_have(lines):
    """None and False are the defaults, "amp", True and a scaler work."""
    code = """
        import torch
        from ignite.engine import create_supervised_trainer
        create_supervised_trainer(m, o, l, amp_mode=None, scaler=False)
        create_supervised_trainer(m, o, l, amp_mode="amp", scaler=True)
        scaler = torch.cuda.amp.GradScaler()
        create_supervised_trainer(m, o, l, amp_mode="amp", scaler=scaler)
    """
    assert lines(RULE, code) == []


def test_precisions_that_a_variable_names(lines):
    """Those that a variable is assigned are known; computed ones are decided when the factory is called."""
    code = """
        from ignite.engine import create_supervised_trainer
        mode = "apex"
        create_supervised_trainer(m, o, l, amp_mode=mode)
        create_supervised_trainer(m, o, l, amp_mode=args.mode)
    """
    assert lines(RULE, code) == [3]
