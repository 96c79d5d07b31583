"""create_supervised_trainer becomes create_ipu_trainer, without the device."""

from __future__ import annotations

import pytest

REWRITE = "ignite-factories"


def test_device_by_position(rewritten):
    """A positional device goes, or becomes None when others follow."""
    before = """\
import ignite.engine as e
a = e.create_supervised_trainer(m, o, l, 'cuda')
b = e.create_supervised_trainer(m, o, l, device, True)
"""
    after = """\
import ignite.engine as e
from ignite_ipu import create_ipu_trainer
a = create_ipu_trainer(m, o, l, drop_last=False)
b = create_ipu_trainer(m, o, l, None, True, drop_last=False)
"""
    assert rewritten(REWRITE, before) == after


def test_layout_and_comments_stay(rewritten):
    """Arguments on lines of their own, with comments."""
    before = """\
from ignite.engine import create_supervised_trainer
trainer = create_supervised_trainer(
    model,
    optimizer,  # SGD
    loss_fn,
    device=device,
    deterministic=False,
)
"""
    after = """\
from ignite_ipu import create_ipu_trainer
trainer = create_ipu_trainer(
    model,
    optimizer,  # SGD
    loss_fn,
    deterministic=False,
    drop_last=False,
)
"""
    assert rewritten(REWRITE, before) == after


def test_imports_that_are_still_used_stay(rewritten):
    """The name may be used for something else than a call."""
    before = """\
from ignite.engine import create_supervised_trainer
factory = create_supervised_trainer
"""
    assert rewritten(REWRITE, before) == before


def test_refused_arguments(rewritten):
    """Another precision, and arguments that are not written out."""
    before = """\
from ignite.engine import create_supervised_trainer as c
c(m, o, l, amp_mode="apex")
c(m, o, l, None, False, p, t, u, False, "apex")
c(m, o, l, amp_mode="amp" if half else "apex")
c(*a)
c(m, **k)
"""
    assert rewritten(REWRITE, before) == before


def test_mixed_precision(rewritten):
    """Half precision for products, and a loss that the device scales by itself, are the trainer's too."""
    before = """\
from ignite.engine import create_supervised_trainer
create_supervised_trainer(m, o, l, amp_mode="amp", scaler=True)
create_supervised_trainer(m, o, l, amp_mode="amp" if half else None, scaler=half is True)
create_supervised_trainer(m, o, l, None, False, p, t, u, False, "amp", True)
create_supervised_trainer(m, o, l, amp_mode=config["amp_mode"], scaler=config["scaler"])
"""
    after = """\
from ignite_ipu import create_ipu_trainer
create_ipu_trainer(m, o, l, amp_mode="amp", scaler=True, drop_last=False)
create_ipu_trainer(m, o, l, amp_mode="amp" if half else None, scaler=half is True, drop_last=False)
create_ipu_trainer(m, o, l, None, False, p, t, u, False, "amp", True, drop_last=False)
create_ipu_trainer(m, o, l, amp_mode=config["amp_mode"], scaler=config["scaler"], drop_last=False)
"""
    assert rewritten(REWRITE, before) == after


def test_comments_of_other_arguments_and_imports(rewritten):
    """Imports with comments stay: a name too many does no harm."""
    before = """\
from ignite.engine import (Events,  # events
    create_supervised_trainer,  # trainer
)
create_supervised_trainer(
    model,
    optimizer,
    criterion,  # the loss
    device=device,  # where
    # what comes out
    output_transform=first,
)
"""
    after = """\
from ignite.engine import (Events,  # events
    create_supervised_trainer,  # trainer
)
from ignite_ipu import create_ipu_trainer
create_ipu_trainer(
    model,
    optimizer,
    criterion,  # the loss
    # what comes out
    output_transform=first,
    drop_last=False,
)
"""
    assert rewritten(REWRITE, before) == after


@pytest.mark.parametrize(
    ("trainer", "loader", "rest"),
    [
        ("m, o, l", "DataLoader(d, 8)", ", drop_last=False"),
        ("m, o, l", "DataLoader(d, 8, drop_last=flag)", ", drop_last=False"),
        ("m, o, l", "DataLoader(d, 8, drop_last=True)", ""),
        ("m, o, l", "make_loader(d)", ", drop_last=False"),
        ("m, o, l, gradient_accumulation_steps=1", "DataLoader(d, 8)", ", drop_last=False"),
    ],
)
def test_incomplete_batches(rewritten, trainer, loader, rest):
    """They are trained as natively, unless the loader drops them."""
    before = f"""\
from ignite.engine import create_supervised_trainer
from torch.utils.data import DataLoader
trainer = create_supervised_trainer({trainer})
loader = {loader}
trainer.run(loader, max_epochs=2)
"""
    assert f"trainer = create_ipu_trainer({trainer}{rest})\n" in rewritten(REWRITE, before)
