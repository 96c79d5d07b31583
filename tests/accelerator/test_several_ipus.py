"""Loops of accelerate whose models are spread over IPUs learn the same as on one, and in accelerate itself."""

from __future__ import annotations

from typing import Any, Dict, Optional

import accelerate
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ignite_ipu.emulator as poptorch
from ignite_ipu import IPUAccelerator
from ignite_ipu.deferred import captured
from ignite_ipu.errors import PlanError
from tests.accelerate_state import forget
from tests.supervised import assert_same_weights

ACCUMULATION = 8


class ConvLayer(nn.Sequential):
    def __init__(self, channels: int, filters: int) -> None:
        super().__init__(nn.Conv2d(channels, filters, 5), nn.MaxPool2d(2), nn.ReLU())


class Network(nn.Module):
    """The model of Graphcore's pipelining tutorial."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer1, self.layer2 = ConvLayer(1, 10), ConvLayer(10, 20)
        self.layer3, self.layer4 = nn.Linear(320, 256), nn.Linear(256, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layer4(self.layer3(self.layer2(self.layer1(images)).flatten(1)).relu())


def begin(config: Optional[Dict[str, Any]], accumulation: int = 1) -> Any:
    """Return an accelerator: accelerate's own without a configuration."""
    forget()
    kind: Any = accelerate.Accelerator if config is None else IPUAccelerator
    settings = {"cpu": True} if config is None else {"config": config}
    return kind(gradient_accumulation_steps=accumulation, **settings)


def tutorial(config: Optional[Dict[str, Any]]) -> Any:
    """Return the losses, the model and its predictions after two updates."""
    accelerator = begin(config, ACCUMULATION)
    model = Network()
    prepared, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.002))
    images, labels = torch.randn(32, 1, 28, 28), torch.arange(32) % 10
    losses = []
    for x, y in zip(images.split(2), labels.split(2)):
        with accelerator.accumulate(prepared):
            loss = F.cross_entropy(prepared(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.detach())
    model.eval()
    with torch.no_grad():
        predictions = model(images[:6])
    return [float(loss) for loss in losses], model, predictions


def test_the_tutorials_model_over_one_two_and_four_ipus():
    losses, native, predictions = tutorial(None)
    for pipeline in (None, ["layer1", "layer3"], ["layer1", "layer2", "layer3", "layer4"]):
        found, model, predicted = tutorial({} if pipeline is None else {"pipeline": pipeline})
        assert found == pytest.approx(losses, rel=1e-4)
        assert_same_weights(model, native, rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(predicted, predictions, rtol=1e-3, atol=1e-4)
        executor = captured(model).session.training.executor
        assert executor._executable.compiled.placement.ipus_per_replica == len(pipeline or [0])
        assert executor._executable.compiled.placement.pipelined == (pipeline is not None)


class Generator(nn.Sequential):
    def __init__(self) -> None:
        torch.manual_seed(1)
        super().__init__(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 6))


class Discriminator(nn.Sequential):
    def __init__(self) -> None:
        torch.manual_seed(2)
        super().__init__(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))


TWO_EACH = {"Generator": {"0": 0, "2": 1}, "Discriminator": {"0": 2, "2": 3}}


def gan(config: Optional[Dict[str, Any]], accumulation: int = 1) -> Any:
    """Return the losses of generator and discriminator, and both models."""
    accelerator = begin(config)
    models = Generator(), Discriminator()
    sgd = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    generator, discriminator, of_generator, of_discriminator = accelerator.prepare(*models, *sgd)
    random, losses = torch.Generator().manual_seed(3), []
    for number in range(2 * accumulation):
        real, noise = torch.randn(4, 6, generator=random), torch.randn(4, 4, generator=random)
        fake = generator(noise)
        real_loss = F.softplus(-discriminator(real)).mean()
        loss = real_loss + F.softplus(discriminator(fake.detach())).mean()
        accelerator.backward(loss)
        losses.append(loss.detach())
        if (number + 1) % accumulation == 0:
            of_discriminator.step()
            of_discriminator.zero_grad()
    for number in range(2 * accumulation):
        loss = F.softplus(-discriminator(generator(torch.randn(4, 4, generator=random)))).mean()
        accelerator.backward(loss)
        losses.append(loss.detach())
        if (number + 1) % accumulation == 0:
            of_generator.step()
            of_generator.zero_grad()
            of_discriminator.zero_grad()
    return [float(loss) for loss in losses], models


@pytest.mark.parametrize(
    ("execution", "accumulation", "update"), [("sharded", 1, None), ("pipelined", 12, None), ("sharded", 1, "host")]
)
def test_a_gan_over_two_ipus_each(execution, accumulation, update):
    expected, native = gan(None, accumulation)
    config = {"pipeline": TWO_EACH, "execution": execution, "update": update, "ipus": 4}
    losses, models = gan(config, accumulation)
    assert losses == pytest.approx(expected, rel=1e-4)
    for one, other in zip(models, native):
        assert_same_weights(one, other, rtol=1e-4, atol=1e-5)
    trained = captured(models[0]).session._programs.trainers
    ipus = [each.program.executor._executable.compiled.placement.ipus_per_replica for each in trained]
    assert ipus == ([4, 4] if update is None else [4])
    with pytest.raises(PlanError, match="4 IPUs per replica x replicationFactor 1 takes 4 IPUs, but ipus=2"):
        gan({**config, "ipus": 2}, accumulation)


class Teacher(Discriminator):
    pass


class Student(Generator):
    def __init__(self) -> None:
        super().__init__()
        self[0] = nn.Linear(6, 8)


@pytest.mark.parametrize("is_evaluated", [True, False])
def test_a_teacher_over_two_ipus_beside_a_student_over_two(is_evaluated):
    """It has a program of its own without gradients, and is part of the student's step where gradients flow through."""

    def distil(config: Optional[Dict[str, Any]]) -> Any:
        accelerator = begin(config)
        teacher, student = Teacher().requires_grad_(False), Student()
        sgd = torch.optim.SGD(student.parameters(), lr=0.1)
        teacher, prepared, optimizer = accelerator.prepare(teacher, student, sgd)
        random, losses = torch.Generator().manual_seed(3), []
        teacher.train(not is_evaluated)
        for _ in range(3):
            x = torch.randn(4, 6, generator=random)
            if is_evaluated:
                with torch.no_grad():
                    target = teacher(x)
                loss = F.mse_loss(prepared(x).mean(1, keepdim=True), target)
            else:
                loss = teacher(prepared(x)).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses, student, teacher

    expected, native, _ = distil(None)
    config = {"pipeline": {"Teacher": [("0", 2), ("2", 3)], "Student": ["0", "2"]}, "execution": "sharded"}
    losses, student, teacher = distil(config)
    assert losses == pytest.approx(expected, rel=1e-4)
    assert_same_weights(student, native, rtol=1e-4, atol=1e-5)
    placement = captured(student).session.training.executor._executable.compiled.placement
    assert placement.ipus_per_replica == (2 if is_evaluated else 4)
    if is_evaluated:
        (program,) = captured(teacher).session.evaluations
        assert program.executor._executable.compiled.placement.ipus_per_replica == 2


@pytest.mark.parametrize(
    ("pipeline", "ipus"),
    [
        ({"Generator": ["0", "2"]}, [0, 1]),  # an omitted model stays where it is called first
        ({"Generator": 1, "Discriminator": 0}, [1, 0]),
        ({"Generator": 0, "Discriminator": [("0", 1), ("2", 0)]}, [0, 1, 0, 1, 0]),
    ],
)
def test_whole_models_and_models_that_are_left_out(pipeline, ipus):
    expected, native = gan(None)
    losses, models = gan({"pipeline": pipeline, "execution": "sharded"})
    assert losses == pytest.approx(expected, rel=1e-4)
    trained = captured(models[0]).session._programs.trainers
    found = [[site.ipu for site in each.program.executor._executable.compiled.placement.blocks] for each in trained]
    assert ipus in found
    with torch.no_grad():
        noise = torch.randn(3, 4)
        torch.testing.assert_close(models[0].eval()(noise), native[0](noise), rtol=1e-4, atol=1e-5)


def test_a_description_of_another_model_is_refused_with_the_way_out():
    with pytest.raises(PlanError, match=r"Generator has no layer named '3'.*pipeline={'Generator': \[...\]}"):
        gan({"pipeline": [("0", 0), ("3", 1)], "execution": "sharded"})


def test_replicas_of_a_pipeline_share_the_micro_batches():
    losses, native, _ = tutorial(None)
    config = {"pipeline": ["layer1", "layer3"], "replication_factor": 2}
    found, model, _ = tutorial(config)
    assert found == pytest.approx(losses, rel=1e-4)
    assert_same_weights(model, native, rtol=1e-3, atol=1e-5)
    options = captured(model).session.training.executor.options
    assert (options.replication_factor, options.Training.gradient_accumulation) == (2, 4)
    assert type(options._execution_strategy) is poptorch.PipelinedExecution
