"""Half precision, and scaling of the loss."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from ignite.engine import Events

from ignite_ipu import ConstantAttributeError, OptimizerError, backend
from ignite_ipu.selftest.bench import Bench
from ignite_ipu.selftest.promise import Promises, Skipped
from ignite_ipu.selftest.reference import agree, batches, expect, moved, network, train

PROMISES = Promises("precision", "precision.md")

# float16 has 11 bits; a few updates add up a few roundings.
_HALF = {"rtol": 2e-2, "atol": 1e-2}


def _need_half_precision() -> None:
    if not backend.is_emulator():
        return
    half = torch.ones(1, 1, 1, dtype=torch.float16)
    try:
        torch.bmm(half, half), torch.conv1d(half, half)
    except RuntimeError:
        raise Skipped(f"PyTorch {torch.__version__} cannot compute in half precision on a CPU") from None


def _sgd(model: Any) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)


def _compare(bench: Bench, tolerance: Any, **settings: Any) -> None:
    data = batches(4)
    model, reference = network(), network()
    optimizer, expected = _sgd(model), _sgd(reference)
    trainer = bench.trainer(model, optimizer, **settings)
    losses = []
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: losses.append(trainer.state.output))
    trainer.run(data)
    agree(losses, train(reference, expected, data), "losses", **tolerance)
    agree(model, reference, "weights", **tolerance)
    state = [slots["momentum_buffer"] for slots in optimizer.state_dict()["state"].values()]
    agree(
        state, [slots["momentum_buffer"] for slots in expected.state_dict()["state"].values()], "momenta", **tolerance
    )
    moved(reference)


@PROMISES.promise()
def loss_scaling(bench: Bench) -> None:
    """A static loss scaling changes neither losses nor weights nor optimizer state."""
    _compare(bench, {}, loss_scaling=128.0)


@PROMISES.promise()
def amp(bench: Bench) -> None:
    """Products in half precision train to float16's accuracy, and weights stay float32."""
    _need_half_precision()
    _compare(bench, _HALF, amp_mode="amp", loss_scaling=64.0)


@PROMISES.promise()
def automatic_loss_scaling(bench: Bench) -> None:
    """Automatic loss scaling trains to float16's accuracy."""
    _need_half_precision()
    data = batches(4)
    model, reference = network(), network()
    bench.trainer(model, _sgd(model), amp_mode="amp", scaler=True).run(data)
    train(reference, _sgd(reference), data)
    agree(model, reference, "weights", **_HALF)


@PROMISES.promise()
def scheduled_loss_scaling(bench: Bench) -> None:
    """A loss scaling may change between calls."""
    data = batches(4)
    model, reference = network(), network()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.2)
    trainer = bench.trainer(model, optimizer, loss_scaling=16.0)
    trainer.run(data[:2])
    optimizer.loss_scaling = 64.0
    trainer.run(data[2:])
    train(reference, torch.optim.SGD(reference.parameters(), lr=0.2), data)
    agree(model, reference, "weights")
    moved(reference)


@PROMISES.promise()
def scheduled_loss_scaling_with_momentum(bench: Bench) -> None:
    """A loss scaling that changes beside a momentum trains right, or is refused by name."""
    data = batches(4)
    model, reference = network(), network()
    optimizer: Any = _sgd(model)
    trainer = bench.trainer(model, optimizer, loss_scaling=16.0)
    trainer.run(data[:2])
    optimizer.loss_scaling = 64.0
    try:
        trainer.run(data[2:])
    except (ConstantAttributeError, OptimizerError) as error:
        expect("loss_scaling" in str(error), f"the error does not say loss_scaling: {error}")
        return
    train(reference, _sgd(reference), data)
    agree(model, reference, "weights")
    moved(reference)


@PROMISES.promise()
def half_model(bench: Bench) -> None:
    """A model in half precision trains to float16's accuracy, and its weights are float16 when they are read."""
    _need_half_precision()
    data = batches(4)
    model, reference = network().half(), network()
    trainer = bench.trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.2),
        lambda y_pred, y: F.cross_entropy(y_pred.float(), y),
        prepare_batch=lambda batch, device, non_blocking: (batch[0].half(), batch[1]),
        loss_scaling=16.0,
    )
    trainer.run(data)
    train(reference, torch.optim.SGD(reference.parameters(), lr=0.2), data)
    found = {name: value.clone() for name, value in model.state_dict().items()}
    expect({value.dtype for value in found.values()} == {torch.float16}, "weights have another type than the model's")
    agree({name: value.float() for name, value in found.items()}, dict(reference.state_dict()), "weights", **_HALF)
