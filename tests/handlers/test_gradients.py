"""`Gradients`: anchored weight gradients as `parameter.grad`."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from ignite.engine import Engine, Events, create_supervised_trainer
from torch import nn
from torch.utils.data import DataLoader

from ignite_ipu import IPUConfig, create_ipu_trainer, emulator
from ignite_ipu.errors import OptionsError, SessionError
from ignite_ipu.handlers import Gradients
from tests.ignite.side import Either
from tests.supervised import network, pair, task

tensorboard = Either("ignite.handlers.tensorboard_logger", "ignite.contrib.handlers.tensorboard_logger")


def test_they_are_those_of_the_last_update_averaged_over_its_micro_batches():
    """With a rate of zero the weights stay, so the gradient of every update can be computed afterwards."""
    model, optimizer = pair(lr=0.0)
    trainer = create_ipu_trainer(
        model,
        optimizer,
        nn.CrossEntropyLoss(),
        device_iterations=2,
        gradient_accumulation_steps=2,
        replication_factor=2,
    )
    Gradients().attach(trainer)
    trainer.run(DataLoader(task(), batch_size=4), max_epochs=1)
    plain = network()
    x, y = task().tensors
    nn.functional.cross_entropy(plain(x[-16:]), y[-16:]).backward()
    for one, other in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(one.grad, other.grad)
    trainer.ipu.close()


@pytest.mark.parametrize("chosen", ["0.weight", ""])
def test_they_are_clipped_as_in_the_update(chosen):
    """To the norm of all gradients, also where only some are shown."""
    model, optimizer = pair(lr=0.0)
    trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss(), max_grad_norm=0.01)
    Gradients(lambda name, parameter: name.startswith(chosen)).attach(trainer)
    trainer.run([task()[:16]])
    plain = network()
    x, y = task()[:16]
    nn.functional.cross_entropy(plain(x), y).backward()
    nn.utils.clip_grad_norm_(plain.parameters(), 0.01)
    for (name, one), other in zip(model.named_parameters(), plain.parameters()):
        if name.startswith(chosen):
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-7)
        else:
            assert one.grad is None
    trainer.ipu.close()


@pytest.mark.parametrize("loss_scaling", [1.0, 64.0])
@pytest.mark.parametrize("mode", ["All", "Sum", "Final"])
def test_they_have_no_loss_scaling_in_any_output_mode(mode, loss_scaling):
    model, optimizer = pair(lr=0.0)
    accumulation = 1 if mode == "Final" else 4
    config = IPUConfig(gradient_accumulation_steps=accumulation, output_mode=mode, loss_scaling=loss_scaling)
    trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss(), config=config)
    Gradients().attach(trainer)
    trainer.run([task()[:16]])
    plain = network()
    x, y = task()[:16]
    nn.functional.cross_entropy(plain(x), y).backward()
    for one, other in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(one.grad, other.grad)
    trainer.ipu.close()


def test_an_output_mode_that_returns_a_part_of_an_update_is_refused():
    """The last micro-batch's gradient is none of the update's."""
    model, optimizer = pair()
    config = IPUConfig(gradient_accumulation_steps=2, output_mode="Final")
    trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss(), config=config)
    Gradients().attach(trainer)
    with pytest.raises(OptionsError, match=r"OutputMode.Final and gradientAccumulation 2.*output_mode='All'"):
        trainer.run([task()[:16]])
    trainer.ipu.close()


def test_only_the_chosen_ones_come_back_and_no_weights_with_them():
    model, optimizer = pair()
    trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss())
    Gradients(lambda name, parameter: name.startswith("2.")).attach(trainer)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: downloads.append(_downloads(trainer)))
    downloads = []
    trainer.run(DataLoader(task(), batch_size=8), max_epochs=1)
    assert downloads == [0]
    assert [parameter.grad is not None for parameter in model.parameters()] == [False, False, True, True]
    trainer.ipu.close()


def _downloads(trainer):
    return emulator.counters(trainer.ipu.training.executor).weight_downloads


def test_a_program_that_is_compiled_already_is_refused_with_the_way_out():
    model, optimizer = pair()
    trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss())
    loader = DataLoader(task(), batch_size=8)
    trainer.run(loader, max_epochs=1)
    with pytest.raises(SessionError, match="release"):
        Gradients().attach(trainer)
    trainer.ipu.release()
    Gradients().attach(trainer)
    trainer.run(loader, max_epochs=2)
    assert all(parameter.grad is not None for parameter in model.parameters())
    trainer.ipu.close()


def test_wrong_engines_and_empty_choices_are_refused():
    with pytest.raises(SessionError, match="create_ipu_trainer"):
        Gradients().attach(Engine(lambda engine, batch: None))
    model, optimizer = pair()
    trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss())
    with pytest.raises(SessionError, match="none of the model's"):
        Gradients(lambda name, parameter: False).attach(trainer)
    trainer.ipu.close()


@pytest.mark.parametrize("give_back", ["close", "release"])
def test_a_program_that_was_given_back_before_is_named(give_back):
    """The order of attaching is the way out."""
    trainer = create_ipu_trainer(*pair(), nn.CrossEntropyLoss())
    trainer.add_event_handler(Events.ITERATION_COMPLETED(once=2), getattr(trainer.ipu, give_back))
    Gradients().attach(trainer)
    with pytest.raises(SessionError, match="Attach that handler after Gradients"):
        trainer.run(DataLoader(task(), batch_size=8))
    trainer.ipu.close()


class WithSpare(nn.Module):
    """Has a layer that its output does not depend on."""

    def __init__(self):
        super().__init__()
        self.used, self.spare = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x):
        return self.used(x)


@pytest.fixture
def trainer_with_spare():
    model = WithSpare()
    trainer = create_ipu_trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss())
    yield trainer
    trainer.ipu.close()


def test_a_parameter_that_the_loss_does_not_depend_on_is_refused(trainer_with_spare):
    """Both ways out stand in the error."""
    Gradients().attach(trainer_with_spare)
    with pytest.raises(SessionError, match=r"no gradient of 'spare\.weight'.*choose=.*Gradients\(allow_unused=True\)"):
        trainer_with_spare.run([task()[:8]])


def test_a_parameter_that_the_loss_does_not_depend_on_may_have_none(trainer_with_spare):
    """As PyTorch leaves it."""
    Gradients(allow_unused=True).attach(trainer_with_spare)
    trainer_with_spare.run([task()[:8]])
    model = trainer_with_spare.ipu.model
    assert model.used.weight.grad is not None and model.spare.weight.grad is None


class Logger(tensorboard.TensorboardLogger):
    """Ignite's logger with a writer of our own, for which no TensorBoard has to be installed."""

    def __init__(self):
        self.writer = SimpleNamespace(add_scalar=lambda *entry: self.entries.append(entry))
        self.entries = []


@pytest.mark.parametrize("late", [False, True])
def test_a_trainer_whose_handlers_read_gradients_shows_them(late):
    """Ignite's handler finds those of the iteration; after one that comes late the program is compiled again."""
    logged = []
    for make in (create_supervised_trainer, create_ipu_trainer):
        model, optimizer = pair(lr=0.1)
        trainer = make(model, optimizer, nn.CrossEntropyLoss())
        if late:
            trainer.run(DataLoader(task(), batch_size=8), max_epochs=1)
        logger = Logger()
        logger.attach(trainer, tensorboard.GradsScalarHandler(model), Events.ITERATION_COMPLETED(every=2))
        trainer.run(DataLoader(task(), batch_size=8), max_epochs=2)
        logged.append(logger.entries)
    trainer.ipu.close()
    native, ours = logged
    assert len(native) > 4
    assert [(tag, step) for tag, _, step in ours] == [(tag, step) for tag, _, step in native]
    for (_, mine, _), (_, theirs, _) in zip(ours, native):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-7)
