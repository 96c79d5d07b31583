"""Half precision, and scaling of the loss."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from ignite.engine import Events

from ignite_ipu import ConstantAttributeError, OptimizerError
from ignite_ipu.selftest.bench import Bench, Pair, agree, batches, expect, sgd

PAGE = "precision.md"

# float16 has 11 bits; a few updates add up a few roundings.
_HALF: Any = {"rtol": 2e-2, "atol": 1e-2}


def _compare(bench: Bench, tolerance: Any, **settings: Any) -> None:
    pair = bench.pair(lambda model: sgd(model, 0.2), **settings)
    trainer, losses = pair.trainer, []
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: losses.append(trainer.state.output))
    agree(losses, pair.run(batches()), "losses", **tolerance)
    pair.compare(state=True, **tolerance)


def loss_scaling(bench: Bench) -> None:
    """A static loss scaling changes neither losses nor weights nor optimizer state."""
    _compare(bench, {}, loss_scaling=128.0)


def amp(bench: Bench) -> None:
    """Products in half precision train to float16's accuracy, and weights stay float32."""
    _compare(bench, _HALF, amp_mode="amp", loss_scaling=64.0)


def automatic_loss_scaling(bench: Bench) -> None:
    """Automatic loss scaling trains to float16's accuracy."""
    pair = bench.pair(lambda model: sgd(model, 0.2), amp_mode="amp", scaler=True)
    pair.run(batches())
    pair.compare(**_HALF)


def _scheduled(bench: Bench, momentum: float) -> None:
    data, pair = batches(), bench.pair(lambda model: sgd(model, 0.2, momentum), loss_scaling=16.0)
    pair.run(data[:2])
    pair.optimizer.loss_scaling = 64.0
    pair.check(data[2:])


def scheduled_loss_scaling(bench: Bench) -> None:
    """A loss scaling may change between calls."""
    _scheduled(bench, momentum=0)


def scheduled_loss_scaling_with_momentum(bench: Bench) -> None:
    """A loss scaling that changes beside a momentum trains right, or is refused by name."""
    try:
        _scheduled(bench, momentum=0.9)
    except (ConstantAttributeError, OptimizerError) as error:
        expect("loss_scaling" in str(error), f"the error does not say loss_scaling: {error}")


def half_model(bench: Bench) -> None:
    """A model in half precision trains to float16's accuracy, and its weights are float16 when they are read."""
    pair = Pair(lambda model: sgd(model, 0.2, 0))
    pair.trainer = bench.trainer(
        pair.model.half(),
        pair.optimizer,
        lambda y_pred, y: F.cross_entropy(y_pred.float(), y),
        prepare_batch=lambda batch, device, non_blocking: (batch[0].half(), batch[1]),
        loss_scaling=16.0,
    )
    pair.run(batches())
    found = {value.dtype for value in pair.model.state_dict().values()}
    expect(found == {torch.float16}, "weights have another type than the model's")
    pair.trainer.ipu.close()
    pair.model.float()
    pair.compare(**_HALF)
