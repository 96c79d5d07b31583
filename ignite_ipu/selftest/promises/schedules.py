"""Hyper-parameters that change on the host reach the device, before the next step, once, and only if they changed."""

from __future__ import annotations

import torch
from ignite.engine import Events
from ignite.handlers import CosineAnnealingScheduler, PiecewiseLinear

from ignite_ipu import CountEvents, IPUEvents
from ignite_ipu.selftest.bench import Bench, agree, batches, expect, joined, sgd

PAGE = "schedules.md"


def of_torch(bench: Bench) -> None:
    """A learning rate that a scheduler of torch sets reaches the device, once for each change."""
    pair = bench.pair(lambda model: sgd(model, 0.5))
    trainer = pair.trainer
    scheduler, native = (torch.optim.lr_scheduler.StepLR(each, 2, 0.1) for each in (pair.optimizer, pair.expected))
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: scheduler.step())
    sent = []
    trainer.add_event_handler(IPUEvents.OPTIMIZER_SENT, lambda: sent.append(trainer.state.iteration))
    pair.check(batches(6), scheduler=native)
    expect(sent == [3, 5], f"the learning rate changes before calls 3 and 5; it was sent before {sent}")


def of_ignite(bench: Bench) -> None:
    """A scheduler of Ignite that is attached to ITERATION_STARTED decides that call's learning rate."""
    data, pair = batches(), bench.pair(lambda model: sgd(model, 0.1, 0))
    schedule = PiecewiseLinear(pair.optimizer, "lr", milestones_values=[(0, 0.8), (4, 0.0)])
    pair.trainer.add_event_handler(Events.ITERATION_STARTED, schedule)
    pair.trainer.run(data)
    for batch, rate in zip(data, (0.8, 0.6, 0.4, 0.2)):
        pair.set(lr=rate)
        pair.train([batch])
    pair.compare()


def per_update(bench: Bench) -> None:
    """A schedule that counts weight updates ends where it does in PyTorch, for any number of updates in a call."""
    data, pair = batches(8), bench.pair(lambda model: sgd(model, 0.5, 0), device_iterations=4)
    schedule = CosineAnnealingScheduler(pair.optimizer, "lr", 0.5, 0.0, cycle_size=16)
    pair.trainer.add_event_handler(CountEvents.WEIGHT_UPDATE_COMPLETED, schedule)
    state = pair.trainer.run(joined(data, calls=2))
    expect(state.weight_updates == 8, f"{state.weight_updates} updates were counted of 8")
    # The handler has set the rates of updates 0 to 7 of 16; the last call had that of update 3.
    rates = [0.25 * (1 + torch.cos(torch.tensor(torch.pi * step / 16)).item()) for step in range(8)]
    agree(pair.optimizer.param_groups[0]["lr"], rates[-1], "learning rate")
    pair.train(data[:4])
    pair.set(lr=rates[3])
    pair.train(data[4:])
    pair.compare()


def momentum_and_decay(bench: Bench) -> None:
    """Momentum and weight decay may change between calls, as learning rates may."""
    data, pair = batches(), bench.pair(lambda model: sgd(model, 0.2, 0.5, weight_decay=0.01))
    for part in (data[:2], data[2:]):
        pair.run(part)
        pair.set(momentum=0.9, weight_decay=0.1)
    pair.compare()


def momentum_from_zero(bench: Bench) -> None:
    """A momentum that is declared variable may rise from zero."""
    data, pair = batches(), bench.pair(lambda model: sgd(model, 0.2, 0), config={"variable": ("momentum",)})
    for part in (data[:1], data[1:]):
        pair.run(part)
        pair.set(momentum=0.9)
    pair.compare()


def loaded_rate(bench: Bench) -> None:
    """A loaded optimizer state brings its learning rate to the device."""
    data, pair = batches(), bench.pair(lambda model: sgd(model, 0.01))
    pair.run(data[:2])
    state = pair.optimizer.state_dict()
    state["param_groups"][0]["lr"] = 0.5
    pair.optimizer.load_state_dict(state)
    pair.expected.param_groups[0]["lr"] = 0.5
    pair.check(data[2:])
