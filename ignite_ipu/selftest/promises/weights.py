"""Newest weights: copies between host and device, attaching, detaching, and giving back."""

from __future__ import annotations

import copy
import gc
from types import SimpleNamespace
from typing import Any, Callable, List, Tuple

import torch
from ignite.engine import Events, create_supervised_trainer
from ignite.metrics import RunningAverage
from torch import nn

from ignite_ipu import IPUEvents, backend, create_ipu_trainer
from ignite_ipu.handlers import EMA, Recovery
from ignite_ipu.selftest.bench import Bench, Pair, agree, batches, expect, moved, network, sgd, train
from ignite_ipu.selftest.promises import needs

PAGE = "concepts.md"


def _copied(bench: Bench, engine: Any, work: Callable[[], Any]) -> Tuple[List[str], int]:
    """Return the copies of weights that the session makes in some work, and how many to the host PopTorch counts."""
    copies: List[str] = []
    engine.add_event_handler(IPUEvents.WEIGHTS_TO_HOST, lambda: copies.append("to host"))
    engine.add_event_handler(IPUEvents.WEIGHTS_TO_DEVICE, lambda: copies.append("to device"))
    counters = bench.poptorch.counters if backend.is_emulator() else lambda: SimpleNamespace(weight_downloads=0)
    before = counters().weight_downloads
    work()
    return copies, counters().weight_downloads - before


def _is_plain(model: Any) -> bool:
    return type(model) is nn.Sequential and type(model[0].weight) is nn.Parameter


@needs(ipus=2)
def copies_of_evaluations(bench: Bench) -> None:
    """An evaluation after training costs one copy to the host; another one right after it costs none."""
    pair = bench.pair()
    evaluator = bench.evaluator(pair.model)

    def work() -> None:
        for _ in range(3):
            pair.trainer.run(batches(2))
            for _ in range(2):
                evaluator.run(batches(2))

    copies, happened = _copied(bench, pair.trainer, work)
    expect(copies.count("to host") == 3, f"three evaluations after training made these copies: {copies}")
    expect(happened in (0, 3), f"PopTorch has copied the weights to the host {happened} times for three evaluations")


def copies_of_training(bench: Bench) -> None:
    """Training steps copy no weights, with metrics and schedules attached; a run brings them to the host as it ends."""
    pair = bench.pair()
    scheduler = torch.optim.lr_scheduler.ExponentialLR(pair.optimizer, 0.9)
    pair.trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: scheduler.step())
    RunningAverage(output_transform=lambda loss: loss).attach(pair.trainer, "loss")
    copies, happened = _copied(bench, pair.trainer, lambda: pair.trainer.run(batches(), max_epochs=3))
    expect(copies == ["to host"], f"a run of 12 steps made these copies: {copies}")
    expect(happened in (0, 1), f"PopTorch has copied the weights to the host {happened} times in a run of 12 steps")


@needs(ipus=2)
def evaluation_sees_the_newest(bench: Bench) -> None:
    """An evaluation sees the newest weights, whichever engine was made or run first."""
    data, pair = batches(3), Pair()
    evaluator = bench.evaluator(pair.model)
    agree(evaluator.run(data[:1]).output, pair.reference(data[0][0]), "predictions before training")
    pair.trainer = bench.trainer(pair.model, pair.optimizer)
    for batch in data:
        pair.run([batch])
        agree(evaluator.run(data[:1]).output, pair.reference(data[0][0]), "predictions after training")


def taking_turns(bench: Bench) -> None:
    """Training and evaluation that share IPUs take turns on them, and training goes on where it was."""
    data, pair = batches(), bench.pair(config={"share_ipus": True})
    evaluator = bench.evaluator(pair.model)
    for part in (data[:2], data[2:]):
        pair.run(part)
        agree(evaluator.run(data[:1]).output, pair.reference(data[0][0]), "predictions")
    pair.compare()


def written_weights(bench: Bench) -> None:
    """Training continues from weights that are loaded, or written in place between epochs."""
    data, pair = batches(2), bench.pair(lambda model: sgd(model, momentum=0))

    @torch.no_grad()
    def halve(model: Any) -> None:
        model[0].weight.mul_(0.5)

    fresh = network().state_dict()
    pair.trainer.add_event_handler(Events.EPOCH_COMPLETED(once=1), lambda: pair.model.load_state_dict(fresh))
    pair.trainer.add_event_handler(Events.EPOCH_COMPLETED(once=2), lambda: halve(pair.model))
    pair.trainer.run(data, max_epochs=3)
    pair.train(data)
    halve(pair.reference)
    pair.train(data)
    pair.compare()


@needs(ipus=2)
def statistics(bench: Bench) -> None:
    """Batch normalisation's statistics are the newest when they are read, and evaluation uses them."""
    data, pair = batches(), bench.pair(model=lambda: network(lambda: nn.BatchNorm1d(8)))
    evaluator = bench.evaluator(pair.model)
    for part in (data[:2], data[2:]):
        pair.run(part)
        for name in ("running_mean", "running_var"):
            agree(getattr(pair.model[2], name), getattr(pair.reference[2], name), name)
    agree(evaluator.run(data[:1]).output, pair.reference.eval()(data[0][0]), "predictions")


def shared_weights(bench: Bench) -> None:
    """Weights that two layers share stay shared."""

    def tied() -> Any:
        model = network(lambda: nn.Linear(8, 8), nn.Tanh, lambda: nn.Linear(8, 8))
        model[4].weight = model[2].weight
        return model

    pair = bench.pair(model=tied)
    pair.check()
    agree(pair.model[4].weight, pair.model[2].weight, "two names of one weight", 0, 0)


def release_and_attach(bench: Bench) -> None:
    """After release() the model is usable on the host, and the next step goes on where training was."""
    data, pair = batches(), bench.pair()
    for part in (data[:2], data[2:]):
        pair.run(part)
        pair.trainer.ipu.release()
        agree(pair.model(data[0][0]), pair.reference(data[0][0]), "outputs on the host")
    pair.compare()


@needs(page="checkpoints.md")
def close_and_go_on_natively(bench: Bench) -> None:
    """After close() model and optimizer are ordinary ones, and native training goes on."""
    data, pair = batches(), bench.pair()
    pair.trainer.run(data[:2])
    pair.trainer.ipu.close()
    expect(_is_plain(pair.model), "the model is still PopTorch's")
    train(pair.model, pair.optimizer, data[2:])
    pair.train(data)
    pair.compare()


@needs(page="checkpoints.md")
def before_the_first_step(bench: Bench) -> None:
    """A trainer whose program has not been compiled yet can be closed and saved."""
    pair = bench.pair()
    states = [each.state_dict() for each in (pair.trainer, pair.model, pair.optimizer)]
    torch.save(states, bench.folder / "fresh.pt")
    pair.trainer.ipu.close()
    bench.trainer(pair.model, sgd(pair.model)).run(batches(1))


def dropping(bench: Bench) -> None:
    """Dropping a trainer releases its IPUs, also if the model refers to it and its faults are guarded."""
    kept = []
    for number in range(3):
        model = network()
        kept.append(sgd(model))
        model.trainer = create_ipu_trainer(model, kept[-1], nn.CrossEntropyLoss(), options=bench.on_the_first())
        Recovery(bench.folder / str(number)).attach(model.trainer)
        model.trainer.run(batches(1))
        del model
        gc.collect()


@needs(page="checkpoints.md")
def best_model_so_far(bench: Bench) -> None:
    """A deep copy of a model in training is an ordinary model that training does not change."""
    data, pair = batches(), bench.pair()
    pair.trainer.run(data[:2])
    best = copy.deepcopy(pair.model)
    pair.trainer.run(data[2:])
    pair.train(data[:2])
    expect(_is_plain(best), f"the copy is a {type(best)}")
    agree(best, pair.reference, "weights of the copy")
    pair.train(data[2:])
    pair.compare()


@torch.no_grad()
def _average(averaged: nn.Module, model: nn.Module) -> None:
    for average, weight in zip(averaged.parameters(), model.parameters()):
        average.lerp_(weight, 0.25)


@needs(page="checkpoints.md")
def moving_average(bench: Bench) -> None:
    """EMA averages the weights as the native recurrence does."""
    pair, averaged = bench.pair(), network()
    ema = EMA(pair.model, momentum=0.25)
    ema.attach(pair.trainer)
    pair.trainer.run(batches())
    for batch in batches():
        pair.train([batch])
        _average(averaged, pair.reference)
    agree(ema.model, averaged, "averages")
    moved(averaged)


@needs(page="handlers.md")
def moving_average_natively(bench: Bench) -> None:
    """EMA averages on a native trainer as well."""
    model, averaged = network(), network()
    trainer = create_supervised_trainer(model, sgd(model), nn.CrossEntropyLoss())
    ema = EMA(model, momentum=0.25)
    ema.attach(trainer)
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: _average(averaged, model))
    trainer.run(batches())
    agree(ema.model, averaged, "averages")
    moved(averaged)
