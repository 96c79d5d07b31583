"""A user's torch optimizer trains on the device as in eager PyTorch, and its state travels both ways.

The calls of PopTorch are written out by hand here, as in a program without the engines.
"""

from __future__ import annotations

import io
from typing import Any, Callable, Iterator, List, Tuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ignite_ipu import backend
from ignite_ipu.errors import ConstantAttributeError
from ignite_ipu.optimizers.conversion import convert_optimizer
from ignite_ipu.optimizers.link import OptimizerLink
from ignite_ipu.program.training_step import TrainingStep

poptorch = backend.poptorch()
Batch = Tuple[torch.Tensor, torch.Tensor]
Make = Callable[[nn.Module], torch.optim.Optimizer]


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def batches(first: int, last: int) -> Iterator[Batch]:
    generator = torch.Generator().manual_seed(2)
    data = [(torch.randn(6, 4, generator=generator), torch.randint(3, (6,), generator=generator)) for _ in range(last)]
    return iter(data[first:])


def groups(model: Any) -> List[Any]:
    """Weights and biases with values of their own."""
    return [
        {"params": [model[0].weight, model[2].weight]},
        {"params": [model[0].bias, model[2].bias], "lr": 0.02, "weight_decay": 0.0},
    ]


OPTIMIZERS = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    "momentum": lambda model: torch.optim.SGD(groups(model), lr=0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda model: torch.optim.SGD(groups(model), lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
    "adam": lambda model: torch.optim.Adam(groups(model), lr=0.01, weight_decay=0.01),
    "adamw": lambda model: torch.optim.AdamW(groups(model), lr=0.01, betas=(0.8, 0.95)),
    "rmsprop": lambda model: torch.optim.RMSprop(groups(model), lr=0.01, weight_decay=0.01),
    "centered": lambda model: torch.optim.RMSprop(groups(model), lr=0.01, momentum=0.5, centered=True),
    "rmsprop momentum": lambda model: torch.optim.RMSprop(groups(model), lr=0.01, momentum=0.5),
}
EVERY = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=list(OPTIMIZERS))


def train_natively(
    model: nn.Module, optimizer: torch.optim.Optimizer, data: Iterator[Batch], halve: bool = False
) -> None:
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.5) if halve else None
    for x, y in data:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()


class Device:
    """A hand-written loop on an IPU."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, **arguments: Any) -> None:
        self.optimizer = optimizer
        self.step = TrainingStep(model, F.cross_entropy, predictions=False)
        conversion = convert_optimizer(optimizer, **arguments)
        self.link = OptimizerLink(conversion, dict(self.step.named_parameters()))
        options = poptorch.Options()
        options.relaxOptimizerAttributesChecks(True)
        self.executor = poptorch.trainingModel(self.step, options, conversion.optimizer)

    def train(self, data: Iterator[Batch], scheduler: Any = None) -> None:
        for x, y in data:
            self.link.push(self.executor)
            self.executor(*self.step.arguments(x, y, micro_batches=1))
            self.link.stepped(1)
            if scheduler is not None:
                scheduler.step()

    def close(self) -> None:
        self.executor.destroy()
        self.link.detach()


def assert_same_weights(model: nn.Module, expected: nn.Module) -> None:
    own = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.testing.assert_close(own, dict(expected.state_dict()), rtol=2e-5, atol=2e-6)


def saved(optimizer: torch.optim.Optimizer) -> Any:
    """Return the state as a checkpoint file gives it back."""
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@EVERY
def test_fifty_steps_with_a_schedule_equal_plain_pytorch(make: Make) -> None:
    """Groups, weight decay, momentum and a learning rate that changes on the way."""
    model, reference = network(), network()
    train_natively(reference, make(reference), batches(0, 50), halve=True)
    optimizer = make(model)
    device = Device(model, optimizer)
    device.train(batches(0, 50), torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.5))
    assert_same_weights(model, reference)
    device.close()


@EVERY
def test_a_run_may_change_machines_twice(make: Make) -> None:
    """Host, device, host: weights and states of both checkpoints go on as if nothing had happened."""
    reference = network()
    reference_optimizer = make(reference)
    train_natively(reference, reference_optimizer, batches(0, 30))

    first = network()
    first_optimizer = make(first)
    train_natively(first, first_optimizer, batches(0, 10))

    second = network()
    second.load_state_dict(first.state_dict())
    second_optimizer = make(second)
    device = Device(second, second_optimizer)
    second_optimizer.load_state_dict(saved(first_optimizer))
    device.train(batches(10, 20))
    state, weights = saved(second_optimizer), {name: t.clone() for name, t in second.state_dict().items()}
    device.close()

    third = network()
    third.load_state_dict(weights)
    third_optimizer = make(third)
    third_optimizer.load_state_dict(state)
    train_natively(third, third_optimizer, batches(20, 30))
    assert_same_weights(third, reference)

    expected = reference_optimizer.state_dict()
    assert third_optimizer.state_dict()["state"].keys() == expected["state"].keys()
    torch.testing.assert_close(third_optimizer.state_dict()["state"], expected["state"], rtol=1e-4, atol=1e-6)


@EVERY
def test_state_dict_is_what_torch_would_have(make: Make) -> None:
    """Same keys, types and shapes as in eager PyTorch, with values to float32 accuracy."""
    model, reference = network(), network()
    optimizer, reference_optimizer = make(model), make(reference)
    device = Device(model, optimizer)
    device.train(batches(0, 5))
    train_natively(reference, reference_optimizer, batches(0, 5))
    own, expected = optimizer.state_dict(), reference_optimizer.state_dict()
    assert own["param_groups"] == expected["param_groups"]
    expected["state"] = {key: value for key, value in expected["state"].items() if None not in value.values()}
    assert {key: list(value) for key, value in own["state"].items()} == {
        key: list(value) for key, value in expected["state"].items()
    }
    torch.testing.assert_close(own["state"], expected["state"], rtol=1e-4, atol=1e-6)
    device.close()


def test_loading_on_a_live_device_rewinds_it() -> None:
    """Both model and optimizer go back to an earlier checkpoint without compiling again."""
    model = network()
    optimizer = OPTIMIZERS["adam"](model)
    device = Device(model, optimizer)
    device.train(batches(0, 5))
    state, weights = saved(optimizer), {name: t.clone() for name, t in device.step.state_dict().items()}
    device.train(batches(5, 10))
    after = {name: t.clone() for name, t in model.state_dict().items()}
    optimizer.load_state_dict(state)
    device.executor.load_state_dict(weights)
    device.train(batches(5, 10))
    torch.testing.assert_close({name: t.clone() for name, t in model.state_dict().items()}, after, rtol=0, atol=0)
    device.close()


def test_state_from_before_the_device_goes_with_the_first_compilation() -> None:
    """An optimizer that has trained on the host needs no checkpoint to go on."""
    model, reference = network(), network()
    optimizer, reference_optimizer = OPTIMIZERS["momentum"](model), OPTIMIZERS["momentum"](reference)
    train_natively(reference, reference_optimizer, batches(0, 20))
    train_natively(model, optimizer, batches(0, 10))
    device = Device(model, optimizer)
    device.train(batches(10, 20))
    assert_same_weights(model, reference)
    device.close()


def test_loss_scaling_changes_nothing_but_the_device() -> None:
    """Velocities carry it there; the state dict does not."""
    model, reference = network(), network()
    optimizer, reference_optimizer = OPTIMIZERS["momentum"](model), OPTIMIZERS["momentum"](reference)
    train_natively(reference, reference_optimizer, batches(0, 10))
    device = Device(model, optimizer, loss_scaling=256.0)
    device.train(batches(0, 5))
    optimizer.loss_scaling = 64.0  # type: ignore[attr-defined]
    device.train(batches(5, 10))
    assert_same_weights(model, reference)
    torch.testing.assert_close(
        optimizer.state_dict()["state"], reference_optimizer.state_dict()["state"], rtol=1e-4, atol=1e-6
    )
    device.close()


def test_unchanged_values_send_nothing() -> None:
    """The counters of the device: one upload with the program, one for each change."""
    model = network()
    optimizer = OPTIMIZERS["adam"](model)
    device = Device(model, optimizer)
    device.train(batches(0, 5))
    assert poptorch.counters(device.executor).optimizer_uploads == 1
    optimizer.param_groups[1]["lr"] = 0.5
    device.train(batches(5, 8))
    counters = poptorch.counters(device.executor)
    assert counters.optimizer_uploads == 2
    assert (counters.optimizer_state_downloads, counters.weight_downloads) == (0, 0)
    device.close()


def test_a_refused_change_leaves_a_working_device() -> None:
    """After the error the run goes on with the old value, and the state can be read."""
    model, reference = network(), network()
    optimizer, reference_optimizer = OPTIMIZERS["sgd"](model), OPTIMIZERS["sgd"](reference)
    train_natively(reference, reference_optimizer, batches(0, 4))
    device = Device(model, optimizer)
    device.train(batches(0, 2))
    optimizer.param_groups[0]["momentum"] = 0.9
    with pytest.raises(ConstantAttributeError, match="momentum"):
        device.train(batches(2, 4))
    optimizer.param_groups[0]["momentum"] = 0
    device.train(batches(2, 4))
    assert_same_weights(model, reference)
    assert optimizer.state_dict()["state"] == {}
    device.close()


@pytest.mark.parametrize("momenta", [(0.0, 0.9), (0.9, 0.0, 0.9), (0.0, 0.5, 0.0, 0.9)], ids=str)
@pytest.mark.parametrize("kind", ["SGD", "decayed SGD", "RMSprop", "centered RMSprop"])
def test_momentum_that_starts_or_ends_has_torchs_buffers(kind: str, momenta: Any) -> None:
    """torch leaves a buffer alone while momentum is zero and goes on with it later; without one it begins anew."""
    if "RMSprop" in kind and not momenta[0]:
        momenta = (0.5, *momenta)  # torch's makes its buffers in the first step only

    def make(model: nn.Module) -> torch.optim.Optimizer:
        if "RMSprop" in kind:
            return torch.optim.RMSprop(model.parameters(), lr=0.005, momentum=momenta[0], centered="centered" in kind)
        decay = 0.1 if "decayed" in kind else 0.0
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=momenta[0], weight_decay=decay)

    model, reference = network(), network()
    optimizer, reference_optimizer = make(model), make(reference)
    device = Device(model, optimizer, variable=("momentum",))
    for phase, momentum in enumerate(momenta):
        for each in (optimizer, reference_optimizer):
            each.param_groups[0]["momentum"] = momentum
        device.train(batches(3 * phase, 3 * phase + 3))
        train_natively(reference, reference_optimizer, batches(3 * phase, 3 * phase + 3))
        if any(momenta[: phase + 1]):
            shown, expected = optimizer.state_dict()["state"], reference_optimizer.state_dict()["state"]
            torch.testing.assert_close(
                [entries["momentum_buffer"] for entries in shown.values()],
                [entries["momentum_buffer"] for entries in expected.values()],
                rtol=1e-4,
                atol=1e-6,
            )
    assert_same_weights(model, reference)
    device.close()


def test_clipping_bounds_the_gradient_norm() -> None:
    """max_grad_norm clips as clip_grad_norm_ does before the step."""
    model, reference = network(), network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    device = Device(model, optimizer, max_grad_norm=0.1)
    device.train(batches(0, 10))
    reference_optimizer = torch.optim.Adam(reference.parameters(), lr=0.01)
    for x, y in batches(0, 10):
        reference_optimizer.zero_grad()
        F.cross_entropy(reference(x), y).backward()
        torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.1)
        reference_optimizer.step()
    own = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.testing.assert_close(own, dict(reference.state_dict()), rtol=1e-3, atol=1e-5)
    device.close()


def test_poptorch_lamb_is_resumed_with_its_own_state_dict() -> None:
    """PopTorch's optimizers keep PopTorch's structure, values and all."""

    def make(model: nn.Module) -> Any:
        return poptorch.optim.LAMB(model.parameters(), lr=0.01)

    whole, first, second = network(), network(), network()
    device = Device(whole, make(whole))
    device.train(batches(0, 10))
    device.close()
    optimizer = make(first)
    device = Device(first, optimizer)
    device.train(batches(0, 5))
    state, weights = saved(optimizer), {name: t.clone() for name, t in first.state_dict().items()}
    device.close()
    second.load_state_dict(weights)
    optimizer = make(second)
    device = Device(second, optimizer)
    optimizer.load_state_dict(state)
    device.train(batches(5, 10))
    assert_same_weights(second, whole)
    device.close()
