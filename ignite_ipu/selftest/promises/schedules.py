"""Hyper-parameters that change on the host reach the device, before the next step, once, and only if they changed."""

from __future__ import annotations

import torch
from ignite.engine import Events
from ignite.handlers import CosineAnnealingScheduler, PiecewiseLinear

from ignite_ipu import CountEvents, IPUEvents
from ignite_ipu.selftest.bench import Bench
from ignite_ipu.selftest.promise import Promises
from ignite_ipu.selftest.reference import agree, batches, expect, joined, moved, network, train

PROMISES = Promises("schedules", "schedules.md")


@PROMISES.promise()
def of_torch(bench: Bench) -> None:
    """A learning rate that a scheduler of torch sets reaches the device, once for each change."""
    data = batches(6)
    model, reference = network(), network()
    optimizer, expected = (torch.optim.SGD(each.parameters(), lr=0.5, momentum=0.9) for each in (model, reference))
    trainer = bench.trainer(model, optimizer)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.1)
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: scheduler.step())
    sent = []
    trainer.add_event_handler(IPUEvents.OPTIMIZER_SENT, lambda: sent.append(trainer.state.iteration))
    trainer.run(data)
    train(reference, expected, data, scheduler=torch.optim.lr_scheduler.StepLR(expected, 2, 0.1))
    agree(model, reference, "weights")
    moved(reference)
    expect(sent == [3, 5], f"the learning rate changes before calls 3 and 5; it was sent before {sent}")


@PROMISES.promise()
def of_ignite(bench: Bench) -> None:
    """A scheduler of Ignite that is attached to ITERATION_STARTED decides that call's learning rate."""
    data = batches(4)
    model, reference = network(), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = bench.trainer(model, optimizer)
    schedule = PiecewiseLinear(optimizer, "lr", milestones_values=[(0, 0.8), (4, 0.0)])
    trainer.add_event_handler(Events.ITERATION_STARTED, schedule)
    trainer.run(data)
    expected = torch.optim.SGD(reference.parameters(), lr=0.1)
    for batch, rate in zip(data, (0.8, 0.6, 0.4, 0.2)):
        expected.param_groups[0]["lr"] = rate
        train(reference, expected, [batch])
    agree(model, reference, "weights")
    moved(reference)


@PROMISES.promise()
def per_update(bench: Bench) -> None:
    """A schedule that counts weight updates ends where it ends natively, whatever a call's number of updates."""
    data = batches(8)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    trainer = bench.trainer(model, optimizer, device_iterations=4)
    schedule = CosineAnnealingScheduler(optimizer, "lr", 0.5, 0.0, cycle_size=16)
    trainer.add_event_handler(CountEvents.WEIGHT_UPDATE_COMPLETED, schedule)
    state = trainer.run(joined(data, calls=2))
    expect(state.weight_updates == 8, f"{state.weight_updates} updates were counted of 8")
    # The handler has set the rates of updates 0 to 7 of 16; the last call had that of update 3.
    rates = [0.25 * (1 + torch.cos(torch.tensor(torch.pi * step / 16)).item()) for step in range(8)]
    agree(optimizer.param_groups[0]["lr"], rates[-1], "learning rate")
    reference = network()
    expected = torch.optim.SGD(reference.parameters(), lr=0.5)
    train(reference, expected, data[:4])
    expected.param_groups[0]["lr"] = rates[3]
    train(reference, expected, data[4:])
    agree(model, reference, "weights")


@PROMISES.promise()
def momentum_and_decay(bench: Bench) -> None:
    """Momentum and weight decay may change between calls, as learning rates may."""
    data = batches(4)
    model, reference = network(), network()
    optimizer, expected = (
        torch.optim.SGD(each.parameters(), lr=0.2, momentum=0.5, weight_decay=0.01) for each in (model, reference)
    )
    trainer = bench.trainer(model, optimizer)
    for part in (data[:2], data[2:]):
        trainer.run(part)
        train(reference, expected, part)
        for each in (optimizer, expected):
            each.param_groups[0].update(momentum=0.9, weight_decay=0.1)
    agree(model, reference, "weights")
    moved(reference)


@PROMISES.promise()
def momentum_from_zero(bench: Bench) -> None:
    """A momentum that is declared variable may rise from zero."""
    data = batches(4)
    model, reference = network(), network()
    optimizer, expected = (torch.optim.SGD(each.parameters(), lr=0.2) for each in (model, reference))
    trainer = bench.trainer(model, optimizer, variable=("momentum",))
    for part in (data[:1], data[1:]):
        trainer.run(part)
        train(reference, expected, part)
        for each in (optimizer, expected):
            each.param_groups[0]["momentum"] = 0.9
    agree(model, reference, "weights")
    moved(reference)


@PROMISES.promise()
def loaded_rate(bench: Bench) -> None:
    """A loaded optimizer state brings its learning rate to the device."""
    data = batches(4)
    model, reference = network(), network()
    optimizer, expected = (torch.optim.SGD(each.parameters(), lr=0.01, momentum=0.9) for each in (model, reference))
    trainer = bench.trainer(model, optimizer)
    trainer.run(data[:2])
    train(reference, expected, data[:2])
    state = optimizer.state_dict()
    state["param_groups"][0]["lr"] = 0.5
    optimizer.load_state_dict(state)
    expected.param_groups[0]["lr"] = 0.5
    trainer.run(data[2:])
    train(reference, expected, data[2:])
    agree(model, reference, "weights")
    moved(reference)
