"""Trainers whose updates PyTorch makes on the host, against eager PyTorch."""

from __future__ import annotations

import pytest
import torch
from ignite.engine import Events
from torch import nn

from ignite_ipu import IPUConfig, create_ipu_evaluator, create_ipu_trainer
from ignite_ipu.errors import OptionsError
from ignite_ipu.handlers import Gradients
from tests.deferred.test_host_optimizers import ByData

X = torch.randn(32, 6, generator=torch.Generator().manual_seed(1))
Y = torch.arange(32) % 3
BATCHES = [(X[start : start + 16], Y[start : start + 16]) for start in (0, 16)]


def network(norm: bool = True) -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5) if norm else nn.Identity(), nn.Tanh(), nn.Linear(5, 3))


def trained(make_optimizer, epochs=3, norm=True, **settings):
    """Return the losses, the model and the optimizer of a trainer that updates on the host."""
    model = network(norm)
    optimizer = make_optimizer(model.parameters())
    trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss(), config=IPUConfig(update="host", **settings))
    losses = []
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: losses.append(engine.state.output))
    trainer.run(BATCHES, max_epochs=epochs)
    trainer.ipu.close()
    return losses, model, optimizer


def eager(make_optimizer, epochs=3, norm=True, clip=None):
    model = network(norm)
    optimizer = make_optimizer(model.parameters())
    losses = []
    for _ in range(epochs):
        for x, y in BATCHES:

            def closure(x=x, y=y):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                if clip is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
                return loss

            losses.append(optimizer.step(closure).item())
    return losses, model, optimizer


def assert_same(found, expected, **tolerances):
    """The losses, weights and buffers, and the optimizer's state, are those of eager PyTorch."""
    losses, model, optimizer = found
    expected_losses, native, other = expected
    torch.testing.assert_close(losses, expected_losses, **tolerances)
    torch.testing.assert_close(dict(model.state_dict()), dict(native.state_dict()), **tolerances)
    torch.testing.assert_close(optimizer.state_dict()["state"], other.state_dict()["state"], **tolerances)


@pytest.mark.parametrize(
    "make_optimizer",
    [
        lambda parameters: torch.optim.LBFGS(parameters, lr=0.1, max_iter=3),
        lambda parameters: torch.optim.NAdam(parameters, lr=0.01),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, maximize=False),
        ByData,
    ],
    ids=["LBFGS", "NAdam", "SGD", "ByData"],
)
def test_an_optimizer_steps_as_natively(make_optimizer):
    assert_same(trained(make_optimizer), eager(make_optimizer))


@pytest.mark.parametrize(
    "settings",
    [
        {"gradient_accumulation_steps": 4},
        {"replication_factor": 2},
        {"gradient_accumulation_steps": 2, "replication_factor": 2, "output_mode": "Sum"},
        {"loss_scaling": 128.0},
    ],
    ids=str,
)
def test_micro_batches_and_loss_scaling_make_no_difference(settings):
    def make_optimizer(parameters):
        return torch.optim.Rprop(parameters)

    found = trained(make_optimizer, norm=False, **settings)
    assert_same(found, eager(make_optimizer, norm=False), rtol=1e-4, atol=1e-5)


def test_gradients_are_clipped_by_pytorch():
    def make_optimizer(parameters):
        return torch.optim.Adadelta(parameters)

    assert_same(trained(make_optimizer, max_grad_norm=0.1), eager(make_optimizer, clip=0.1))


def test_an_evaluator_has_the_weights_and_statistics_of_the_host():
    model = network()
    trainer = create_ipu_trainer(
        model, torch.optim.RAdam(model.parameters()), nn.CrossEntropyLoss(), config={"update": "host"}
    )
    evaluator = create_ipu_evaluator(model)
    for _ in range(2):
        trainer.run(BATCHES, max_epochs=1)
        found = evaluator.run([BATCHES[0]]).output[0]
        with torch.no_grad():
            torch.testing.assert_close(found, model.eval()(BATCHES[0][0]))
    trainer.ipu.close()


def test_several_updates_in_a_device_call_are_refused():
    with pytest.raises(OptionsError, match=r"deviceIterations is 2 with update='host'.*Leave device_iterations at 1"):
        trained(torch.optim.Adagrad, device_iterations=2)


@pytest.mark.parametrize("setting", [{"variable": ["lr"]}, {"substitute": "closest"}, {"accum_type": "float16"}])
def test_settings_of_device_optimizers_are_refused(setting):
    with pytest.raises(OptionsError, match=r"is about an optimizer on the device"):
        trained(torch.optim.Adagrad, **setting)


def compared(change=lambda trainer, model, number: None, batches=BATCHES * 2, **settings):
    """Compare a trainer with a native loop; `change` is called before each iteration, on the host without a trainer."""
    found = []
    for trains_natively in (True, False):
        model = network()
        optimizer = torch.optim.NAdam(model.parameters(), lr=0.05)
        losses = []
        if trains_natively:
            for number, (x, y) in enumerate(batches):
                change(None, model, number)
                model.train()
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        else:
            config = IPUConfig(update="host", **settings)
            trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss(), config=config)
            trainer.add_event_handler(Events.ITERATION_STARTED, lambda e, m=model: change(e, m, e.state.iteration - 1))
            trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda e, seen=losses: seen.append(e.state.output))
            trainer.run(batches, epoch_length=len(batches))
            trainer.ipu.close()
        found.append((losses, model, optimizer))
    return found


def test_layers_are_frozen_and_trained_again():
    def change(trainer, model, number):
        if number in (1, 3):
            model[0].requires_grad_(number == 3)

    native, ours = compared(change)
    assert_same(ours, native)


def test_ipus_are_given_back_and_shared_with_an_evaluator():
    def change(trainer, model, number):
        if trainer is not None:
            if number == 1:
                trainer.ipu.release()
            create_ipu_evaluator(model).run(BATCHES[:1])

    native, ours = compared(change, share_ipus=True)
    assert_same(ours, native)


def test_weights_are_written_between_iterations():
    def change(trainer, model, number):
        with torch.no_grad():
            model[0].weight.mul_(0.9)
        model[3].weight.data = model[3].weight.data.clamp(-0.2, 0.2)

    native, ours = compared(change)
    assert_same(ours, native)


def test_batches_of_several_shapes_train():
    batches = [BATCHES[0], (X[:12], Y[:12]), BATCHES[1], (X[12:24], Y[12:24])]
    native, ours = compared(batches=batches)
    assert_same(ours, native)


def test_gradients_are_there_for_handlers():
    model = network()
    trainer = create_ipu_trainer(
        model, torch.optim.Rprop(model.parameters()), nn.CrossEntropyLoss(), config={"update": "host"}
    )
    Gradients().attach(trainer)
    trainer.run(BATCHES)
    assert all(each.grad is not None for each in model.parameters())
    trainer.ipu.close()


@pytest.mark.parametrize(
    "settings",
    [
        {"mixed_precision": "fp16", "loss_scaling": 64.0},
        {"mixed_precision": "fp16", "loss_scaling": "auto"},
    ],
    ids=str,
)
def test_half_precision_trains_alike(settings):
    native, ours = compared(**settings)
    torch.testing.assert_close(ours[0], native[0], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("execution", ["pipelined", "sharded"])
def test_a_model_over_several_ipus_trains(execution):
    def make_optimizer(parameters):
        return torch.optim.Rprop(parameters)

    settings = {"pipeline": [2, 2], "execution": execution, "gradient_accumulation_steps": 4}
    found = trained(make_optimizer, norm=False, **settings)
    assert_same(found, eager(make_optimizer, norm=False), rtol=1e-4, atol=1e-5)
