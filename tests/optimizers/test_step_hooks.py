"""Hooks around `optimizer.step()` work for an engine on an IPU as for Ignite's own, or are refused by name."""

from __future__ import annotations

import functools

import pytest
import torch
from ignite.engine import Events, create_supervised_trainer
from ignite.metrics import Loss
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import DataLoader

import ignite_ipu.emulator as poptorch
from ignite_ipu import OptimizerError, create_ipu_evaluator, create_ipu_trainer
from ignite_ipu.handlers import Recovery
from tests.supervised import assert_same_weights, pair, task

LOADER = DataLoader(task(), batch_size=8)


def clamp(optimizer, args, kwargs):
    assert args == (optimizer,) and kwargs == {}
    with torch.no_grad():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.clamp_(-0.25, 0.25)


def decay(optimizer, args, kwargs):
    optimizer.param_groups[0]["lr"] *= 0.9


def warm_up(calls):
    def hook(optimizer, args, kwargs):
        calls.append(optimizer.param_groups[0]["lr"])
        optimizer.param_groups[0]["lr"] = 0.2 / len(calls)

    return hook


def trainer_of(create, register, **settings):
    model, optimizer = pair(lr=0.1, momentum=0.9)
    register(optimizer)
    return create(model, optimizer, nn.CrossEntropyLoss(), **settings), model, optimizer


REGISTER = {
    "post": lambda optimizer: optimizer.register_step_post_hook(clamp),
    "post that sets lr": lambda optimizer: optimizer.register_step_post_hook(decay),
    "pre": lambda optimizer: optimizer.register_step_pre_hook(warm_up([])),
    "both": lambda optimizer: (
        optimizer.register_step_pre_hook(warm_up([])),
        optimizer.register_step_post_hook(clamp),
    ),
    "with a schedule": lambda optimizer: (StepLR(optimizer, 1), optimizer.register_step_post_hook(clamp)),
}


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("register", REGISTER.values(), ids=REGISTER)
def test_hooks_are_called_for_every_update(register, accumulation):
    """They may write weights after it, and rates before and after."""
    ended = []
    for create in (create_supervised_trainer, create_ipu_trainer):
        trainer, model, optimizer = trainer_of(create, register, gradient_accumulation_steps=accumulation)
        trainer.run(LOADER, max_epochs=3)
        ended.append((model, optimizer.param_groups[0]["lr"]))
    (native, rate), (ipu, same_rate) = ended
    assert same_rate == pytest.approx(rate)
    assert_same_weights(ipu, native)


def test_hooks_that_come_during_training_and_go():
    ended = []
    for create in (create_supervised_trainer, create_ipu_trainer):
        trainer, model, optimizer = trainer_of(create, lambda optimizer: None)
        handles = []
        trainer.add_event_handler(
            Events.EPOCH_COMPLETED(once=1),
            lambda _, handles=handles, optimizer=optimizer: handles.append(optimizer.register_step_post_hook(clamp)),
        )
        trainer.add_event_handler(Events.ITERATION_COMPLETED(once=13), lambda _, handles=handles: handles[0].remove())
        trainer.run(LOADER, max_epochs=3)
        ended.append(model)
    assert_same_weights(*reversed(ended))


def test_hooks_of_all_optimizers():
    """In PyTorch's order: those of all before those of one before the update, and the other way round after it."""
    orders = []
    for create in (create_supervised_trainer, create_ipu_trainer):
        order = []
        orders.append(order)
        handles = [
            register_optimizer_step_pre_hook(lambda *_, order=order: order.append("all before")),
            register_optimizer_step_post_hook(lambda *_, order=order: order.append("all after")),
        ]
        try:
            trainer, _, optimizer = trainer_of(create, lambda optimizer: None)
            optimizer.register_step_pre_hook(lambda *_, order=order: order.append("before"))
            optimizer.register_step_post_hook(lambda *_, order=order: order.append("after"))
            trainer.run(LOADER, max_epochs=1)
        finally:
            for handle in handles:
                handle.remove()
    assert orders[1] == orders[0] and len(orders[0]) == 32


def test_what_hooks_write_survives_a_fault(tmp_path):
    ended = []
    for faults in ({}, {6: poptorch.Fault("IPU_RESET")}):
        trainer, model, _ = trainer_of(create_ipu_trainer, REGISTER["both"])
        Recovery(tmp_path, backoff=0.0).attach(trainer)
        with poptorch.inject_faults(faults):
            trainer.run(LOADER, max_epochs=2)
        assert trainer.state.recovery.recoveries == len(faults)
        ended.append(model)
    assert_same_weights(*reversed(ended), rtol=0.0, atol=0.0)


def test_hooks_around_several_updates_of_one_call_are_refused():
    trainer, _, _ = trainer_of(create_ipu_trainer, REGISTER["post"], device_iterations=2)
    with pytest.raises(OptimizerError, match=r"clamp\(\) is registered around SGD.step\(\).*2 updates.*device_iter"):
        trainer.run(LOADER)


def other_arguments(optimizer, args, kwargs):
    return args, kwargs


def write_weights(optimizer, args, kwargs):
    clamp(optimizer, args, kwargs)


def clip(optimizer, args, kwargs):
    nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 0.1)


@pytest.mark.parametrize(
    ("hook", "register", "message"),
    [
        (other_arguments, "register_step_pre_hook", r"other_arguments\(\) .* returned other arguments"),
        (write_weights, "register_step_pre_hook", r"write_weights\(\) .* wrote into weights.*register_step_post_hook"),
        (clip, "register_step_pre_hook", r"clip\(\) .* gradient of a parameter of shape \(8, 6\).*max_grad_norm"),
        (clip, "register_step_post_hook", r"clip\(\) .* gradient of a parameter of shape \(8, 6\).*max_grad_norm"),
    ],
)
def test_hooks_that_no_device_can_honour_are_refused(hook, register, message):
    trainer, _, _ = trainer_of(create_ipu_trainer, lambda optimizer: getattr(optimizer, register)(hook))
    with pytest.raises(OptimizerError, match=message):
        trainer.run(LOADER)


class Scaled(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model, self.factor = model, 1.0

    def forward(self, x):
        return self.model(x) * self.factor


def test_a_hook_before_the_step_has_not_written_weights_that_an_evaluator_has():
    """The trainer's program gives way to another one, and then nothing has watched the weights."""
    model, optimizer = pair(lr=0.1)
    scaled = Scaled(model)
    optimizer.register_step_pre_hook(lambda *_: None)
    trainer = create_ipu_trainer(scaled, optimizer, nn.CrossEntropyLoss())
    evaluator = create_ipu_evaluator(scaled, {"loss": Loss(nn.CrossEntropyLoss())})
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: evaluator.run(LOADER))
    for factor in (1.0, 0.5):
        scaled.factor = factor
        trainer.run(LOADER, max_epochs=1)
    assert evaluator.state.metrics["loss"] > 0


def replace_step(optimizer):
    own = optimizer.step

    @functools.wraps(own)
    def clamped_step(*args, **kwargs):
        own(*args, **kwargs)
        clamp(optimizer, (optimizer,), {})

    clamped_step.__qualname__ = "clamped_step"
    optimizer.step = clamped_step


@pytest.mark.parametrize("before", [lambda optimizer: None, lambda optimizer: StepLR(optimizer, 1)])
def test_a_replaced_step_is_refused(before):
    """Also one around a schedule's, whose marks it takes over."""
    trainer, _, _ = trainer_of(create_ipu_trainer, lambda optimizer: (before(optimizer), replace_step(optimizer)))
    with pytest.raises(OptimizerError, match=r"step of this SGD was replaced by clamped_step\(\).*step_post_hook"):
        trainer.run(LOADER)
