"""Whose weights are newest: copies between host and device, attaching, detaching, and giving back."""

from __future__ import annotations

import copy
import gc
from typing import Any, List

import torch
from ignite.engine import Events, create_supervised_trainer
from ignite.metrics import RunningAverage
from torch import nn

from ignite_ipu import IPUEvents, backend, create_ipu_trainer
from ignite_ipu.handlers import EMA, Recovery
from ignite_ipu.selftest.bench import Bench
from ignite_ipu.selftest.promise import Promises
from ignite_ipu.selftest.reference import agree, batches, expect, moved, network, same_bits, train

PROMISES = Promises("weights", "concepts.md")


def _copies(engine: Any) -> List[str]:
    """Return a list that grows with each copy of the weights that the session makes."""
    copies: List[str] = []
    engine.add_event_handler(IPUEvents.WEIGHTS_TO_HOST, lambda: copies.append("to host"))
    engine.add_event_handler(IPUEvents.WEIGHTS_TO_DEVICE, lambda: copies.append("to device"))
    return copies


def _downloads(bench: Bench) -> int:
    """Return how many copies to the host PopTorch itself has made; only the emulator counts them."""
    return int(bench.poptorch.counters().weight_downloads) if backend.is_emulator() else 0


def _sgd(model: nn.Module, **more: Any) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9, **more)


@PROMISES.promise(ipus=2)
def copies_of_evaluations(bench: Bench) -> None:
    """An evaluation after training costs one copy to the host; another one right after it costs none."""
    model = network()
    trainer, evaluator = bench.trainer(model, _sgd(model)), bench.evaluator(model)
    copies = _copies(trainer)
    before = _downloads(bench)
    for _ in range(3):
        trainer.run(batches(2))
        for _ in range(2):
            evaluator.run(batches(2))
    expect(copies.count("to host") == 3, f"three evaluations after training made these copies: {copies}")
    happened = _downloads(bench) - before
    expect(happened in (0, 3), f"PopTorch has copied the weights to the host {happened} times for three evaluations")


@PROMISES.promise()
def copies_of_training(bench: Bench) -> None:
    """Training steps copy no weights, with metrics and schedules attached; a run brings them to the host as it ends."""
    model = network()
    optimizer = _sgd(model)
    trainer = bench.trainer(model, optimizer)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: scheduler.step())
    RunningAverage(output_transform=lambda loss: loss).attach(trainer, "loss")
    copies = _copies(trainer)
    before = _downloads(bench)
    trainer.run(batches(4), max_epochs=3)
    happened = _downloads(bench) - before
    expect(copies == ["to host"], f"a run of 12 steps made these copies: {copies}")
    expect(happened in (0, 1), f"PopTorch has copied the weights to the host {happened} times in a run of 12 steps")


@PROMISES.promise(ipus=2)
def evaluation_sees_the_newest(bench: Bench) -> None:
    """An evaluation sees the newest weights, whichever engine was made or run first."""
    data = batches(3)
    model, reference = network(), network()
    evaluator = bench.evaluator(model, output_transform=lambda x, y, y_pred: y_pred)
    agree(evaluator.run(data[:1]).output, reference(data[0][0]), "predictions before training")
    trainer, expected = bench.trainer(model, _sgd(model)), _sgd(reference)
    for batch in data:
        trainer.run([batch])
        train(reference, expected, [batch])
        agree(evaluator.run(data[:1]).output, reference(data[0][0]), "predictions after training")


@PROMISES.promise()
def taking_turns(bench: Bench) -> None:
    """Training and evaluation that share IPUs take turns on them, and training goes on where it was."""
    data = batches(4)
    model, reference = network(), network()
    trainer = bench.trainer(model, _sgd(model), share_ipus=True)
    evaluator = bench.evaluator(model, output_transform=lambda x, y, y_pred: y_pred)
    expected = _sgd(reference)
    for part in (data[:2], data[2:]):
        trainer.run(part)
        train(reference, expected, part)
        agree(evaluator.run(data[:1]).output, reference(data[0][0]), "predictions")
    agree(model, reference, "weights")


@PROMISES.promise()
def written_weights(bench: Bench) -> None:
    """Weights that are loaded, or written in place between epochs, are what training goes on from."""
    data = batches(2)
    model, reference = network(), network()
    trainer = bench.trainer(model, torch.optim.SGD(model.parameters(), lr=0.3))

    def edit() -> None:
        if trainer.state.epoch == 1:
            model.load_state_dict(network().state_dict())
        if trainer.state.epoch == 2:
            with torch.no_grad():
                model[0].weight.mul_(0.5)

    trainer.add_event_handler(Events.EPOCH_COMPLETED, edit)
    trainer.run(data, max_epochs=3)
    expected = torch.optim.SGD(reference.parameters(), lr=0.3)
    train(reference, expected, data)
    with torch.no_grad():
        reference[0].weight.mul_(0.5)
    train(reference, expected, data)
    agree(model, reference, "weights")


@PROMISES.promise(ipus=2)
def statistics(bench: Bench) -> None:
    """Batch normalisation's statistics are the newest when they are read, and evaluation uses them."""
    data = batches(4)
    model, reference = (network(lambda: nn.BatchNorm1d(8)) for _ in range(2))
    trainer = bench.trainer(model, _sgd(model))
    evaluator = bench.evaluator(model, output_transform=lambda x, y, y_pred: y_pred)
    expected = _sgd(reference)
    for part in (data[:2], data[2:]):
        trainer.run(part)
        train(reference, expected, part)
        for name in ("running_mean", "running_var"):
            agree(getattr(model[2], name), getattr(reference[2], name), name)
    agree(evaluator.run(data[:1]).output, reference.eval()(data[0][0]), "predictions")


@PROMISES.promise()
def shared_weights(bench: Bench) -> None:
    """Weights that two layers share stay shared."""

    def tied() -> Any:
        model = network(lambda: nn.Linear(8, 8), nn.Tanh, lambda: nn.Linear(8, 8))
        model[4].weight = model[2].weight
        return model

    data = batches(4)
    model, reference = tied(), tied()
    bench.trainer(model, _sgd(model)).run(data)
    train(reference, _sgd(reference), data)
    agree(model, reference, "weights")
    same_bits(model[4].weight, model[2].weight, "two names of one weight")


@PROMISES.promise()
def release_and_attach(bench: Bench) -> None:
    """After release() the model is usable natively, and the next step goes on where training was."""
    data = batches(4)
    model, reference = network(), network()
    trainer, expected = bench.trainer(model, _sgd(model)), _sgd(reference)
    for part in (data[:2], data[2:]):
        trainer.run(part)
        train(reference, expected, part)
        trainer.ipu.release()
        agree(model(data[0][0]), reference(data[0][0]), "outputs on the host")
    agree(model, reference, "weights")
    moved(reference)


@PROMISES.promise(page="checkpoints.md")
def close_and_go_on_natively(bench: Bench) -> None:
    """After close() model and optimizer are ordinary ones, and native training goes on."""
    data = batches(4)
    model, reference = network(), network()
    optimizer, expected = _sgd(model), _sgd(reference)
    trainer = bench.trainer(model, optimizer)
    trainer.run(data[:2])
    trainer.ipu.close()
    expect(type(model) is nn.Sequential and type(model[0].weight) is nn.Parameter, "the model is still PopTorch's")
    train(model, optimizer, data[2:])
    train(reference, expected, data)
    agree(model, reference, "weights")


@PROMISES.promise(page="checkpoints.md")
def before_the_first_step(bench: Bench) -> None:
    """A trainer whose program has not been compiled yet can be closed and saved."""
    model = network()
    optimizer = _sgd(model)
    trainer = bench.trainer(model, optimizer)
    torch.save([trainer.state_dict(), model.state_dict(), optimizer.state_dict()], bench.folder / "fresh.pt")
    trainer.ipu.close()
    again = bench.trainer(model, _sgd(model))
    again.run(batches(1))


@PROMISES.promise()
def dropping(bench: Bench) -> None:
    """Dropping a trainer gives its IPUs back, also if the model knows it and its faults are guarded."""

    def train_on_the_first(number: int) -> Any:
        model = network()
        optimizer = _sgd(model)
        options = bench.options().useIpuId(0)
        trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss(), options=options)
        Recovery(bench.folder / str(number)).attach(trainer)
        model.trainer = trainer
        trainer.run(batches(1))
        return optimizer

    kept = []
    for number in range(3):
        kept.append(train_on_the_first(number))
        gc.collect()


@PROMISES.promise(page="checkpoints.md")
def best_model_so_far(bench: Bench) -> None:
    """A deep copy of a model in training is an ordinary model that training does not change."""
    data = batches(4)
    model, reference = network(), network()
    trainer, expected = bench.trainer(model, _sgd(model)), _sgd(reference)
    trainer.run(data[:2])
    best = copy.deepcopy(model)
    trainer.run(data[2:])
    train(reference, expected, data[:2])
    expect(type(best) is nn.Sequential and type(best[0].weight) is nn.Parameter, f"the copy is a {type(best)}")
    agree(best, reference, "weights of the copy")
    train(reference, expected, data[2:])
    agree(model, reference, "weights of the model")


@PROMISES.promise(page="checkpoints.md")
def moving_average(bench: Bench) -> None:
    """EMA averages the weights as the native recurrence does."""
    data = batches(4)
    model, reference, averaged = network(), network(), network()
    trainer, expected = bench.trainer(model, _sgd(model)), _sgd(reference)
    ema = EMA(model, momentum=0.25)
    ema.attach(trainer)
    trainer.run(data)
    for batch in data:
        train(reference, expected, [batch])
        with torch.no_grad():
            for average, weight in zip(averaged.parameters(), reference.parameters()):
                average.lerp_(weight, 0.25)
    agree(ema.model, averaged, "averages")
    moved(averaged)


@PROMISES.promise(page="handlers.md")
def moving_average_natively(bench: Bench) -> None:
    """EMA averages on a native trainer as well."""
    data = batches(4)
    model, averaged = network(), network()
    trainer = create_supervised_trainer(model, _sgd(model), nn.CrossEntropyLoss())
    ema = EMA(model, momentum=0.25)
    ema.attach(trainer)

    def average() -> None:
        with torch.no_grad():
            for mean, weight in zip(averaged.parameters(), model.parameters()):
                mean.lerp_(weight, 0.25)

    trainer.add_event_handler(Events.ITERATION_COMPLETED, average)
    trainer.run(data)
    agree(ema.model, averaged, "averages")
    moved(averaged)
