"""Tensors of a loss module are as new as the model's weights after any write, as with Ignite's own engine."""

from __future__ import annotations

import copy

import pytest
import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Loss
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import ignite_ipu.emulator as poptorch
from ignite_ipu import IPUSession, create_ipu_evaluator, create_ipu_trainer
from ignite_ipu.errors import SessionError
from ignite_ipu.handlers import Recovery
from tests.supervised import assert_same_weights, network, task

LOADER = DataLoader(task(), batch_size=8)


class Weighted(nn.Module):
    """A loss with weights for classes, a buffer, and a temperature that is trained."""

    def __init__(self):
        super().__init__()
        self.register_buffer("w", torch.tensor([1.0, 2.0, 3.0]))
        self.temperature = nn.Parameter(torch.tensor(1.0))

    def forward(self, y_pred, y):
        return (F.cross_entropy(y_pred * self.temperature, y, reduction="none") * self.w[y]).mean()


class TowardsTeacher(nn.Module):
    """A loss that holds a copy of the model, which follows it slowly, and the model, too."""

    def __init__(self, model):
        super().__init__()
        self.student = model
        self.teacher = copy.deepcopy(model).requires_grad_(False)

    def forward(self, y_pred, y):
        pairs = zip(self.student.parameters(), self.teacher.parameters())
        return F.cross_entropy(y_pred, y) + sum((one - other).pow(2).sum() for one, other in pairs)


def trainer_of(create, loss_of=lambda model: Weighted()):
    model = network()
    loss = loss_of(model)
    parameters = {id(each): each for each in (*model.parameters(), *loss.parameters()) if each.requires_grad}
    optimizer = torch.optim.SGD(parameters.values(), lr=0.1, momentum=0.9)
    return create(model, optimizer, loss), model, loss


def copy_into_the_buffer(engine, loss):
    loss.w.copy_(torch.tensor([3.0, 1.0, 0.5]) * engine.state.iteration / 8)


def load(engine, loss):
    temperature = torch.tensor(0.5 + engine.state.iteration / 24)
    loss.load_state_dict({"w": torch.tensor([3.0, 1.0, 0.5]), "temperature": temperature})


def set_the_parameter(engine, loss):
    with torch.no_grad():
        loss.temperature.zero_().add_(0.3)


def replace_the_memory(engine, loss):
    loss.w.data = torch.tensor([3.0, 1.0, 0.5])


@pytest.mark.parametrize("event", [Events.EPOCH_COMPLETED, Events.ITERATION_COMPLETED(every=3)])
@pytest.mark.parametrize("edit", [copy_into_the_buffer, load, set_the_parameter, replace_the_memory])
def test_what_is_written_into_a_loss_reaches_the_device(edit, event):
    """In a handler, and between two runs."""
    ended = {}
    for create in (create_supervised_trainer, create_ipu_trainer):
        trainer, model, loss = trainer_of(create)
        trainer.add_event_handler(event, edit, loss)
        trainer.run(LOADER, max_epochs=3)
        with torch.no_grad():
            loss.w.mul_(0.5)
        trainer.run(LOADER, max_epochs=5)
        ended[create] = nn.ModuleList([model, loss]), trainer.state.output
    (native, expected), (ipu, found) = ended.values()
    assert found == pytest.approx(expected, rel=1e-4)
    assert_same_weights(ipu, native, rtol=1e-4, atol=1e-5)


def test_a_teacher_inside_the_loss_follows_the_model():
    """The model that the loss holds, too, is copied once."""
    ended = []
    for create in (create_supervised_trainer, create_ipu_trainer):
        trainer, model, loss = trainer_of(create, TowardsTeacher)

        @trainer.on(Events.ITERATION_COMPLETED(every=4))
        def follow(engine, loss=loss):
            for one, other in zip(loss.teacher.parameters(), loss.student.parameters()):
                one.mul_(0.5).add_(other.detach(), alpha=0.5)

        trainer.run(LOADER, max_epochs=3)
        ended.append(nn.ModuleList([model, loss.teacher]))
    assert_same_weights(*reversed(ended))


def test_a_loss_costs_no_copies_until_it_is_written():
    """Nothing is uploaded, and the tensors are looked at only when one may have been touched."""
    trainer, _, _ = trainer_of(create_ipu_trainer)
    trainer.run(LOADER, max_epochs=2)
    assert poptorch.counters(trainer.ipu.training.executor).weight_uploads == 1
    assert trainer.ipu.weights.detector.looks <= 4


def test_the_loss_of_an_evaluation_is_the_edited_one():
    """A `Loss` metric reads the loss on the host between the training steps."""
    seen = {}
    for create, evaluate in (
        (create_supervised_trainer, create_supervised_evaluator),
        (create_ipu_trainer, create_ipu_evaluator),
    ):
        trainer, model, loss = trainer_of(create)
        evaluator = evaluate(model, {"loss": Loss(loss)})
        values = seen[create] = []
        trainer.add_event_handler(Events.EPOCH_COMPLETED, copy_into_the_buffer, loss)

        @trainer.on(Events.EPOCH_COMPLETED)
        def measure(engine, evaluator=evaluator, values=values):
            values.append(evaluator.run(LOADER).metrics["loss"])

        trainer.run(LOADER, max_epochs=3)
    native, ipu = seen.values()
    assert ipu == pytest.approx(native, rel=1e-4)


def test_an_edited_loss_survives_faults(tmp_path):
    """Recovery repeats the calls since its snapshot with the loss of each moment."""
    ended = []
    for faults in ({}, {5: poptorch.Fault("IPU_RESET"), 14: poptorch.Fault("IPU_RESET")}):
        trainer, model, loss = trainer_of(create_ipu_trainer)
        trainer.add_event_handler(Events.ITERATION_COMPLETED(every=3), copy_into_the_buffer, loss)
        Recovery(tmp_path, backoff=0.0, every=4).attach(trainer)
        with poptorch.inject_faults(faults):
            trainer.run(LOADER, max_epochs=3)
        assert trainer.state.recovery.recoveries == len(faults)
        ended.append(nn.ModuleList([model, loss]))
    assert_same_weights(*reversed(ended), rtol=0.0, atol=0.0)


@pytest.mark.parametrize("event", [Events.EPOCH_COMPLETED, Events.ITERATION_COMPLETED(once=3)])
def test_a_replaced_tensor_of_a_loss_is_refused(event):
    """As one of the model is: the device has the previous tensor."""
    trainer, _, loss = trainer_of(create_ipu_trainer)
    trainer.add_event_handler(event, lambda: setattr(loss, "w", torch.tensor([3.0, 1.0, 0.5])))
    with pytest.raises(SessionError, match=r"loss_fn\.w of the trainer was replaced.*in place \(with copy_\(\)"):
        trainer.run(LOADER, max_epochs=3)


def test_a_loss_may_be_replaced_when_its_trainer_is_gone():
    """The session of the model goes on with another trainer."""
    trainer, model, loss = trainer_of(create_ipu_trainer)
    trainer.run(LOADER)
    session = IPUSession.of(model)
    session.stop_training()
    loss.w = torch.tensor([3.0, 1.0, 0.5])
    session.check_model()
