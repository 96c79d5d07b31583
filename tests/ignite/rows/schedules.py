"""Schedules of the learning rate, of other hyper-parameters and of values in an engine's state."""

from __future__ import annotations

import torch
from ignite.engine import Events
from torch.optim import lr_scheduler

from ignite_ipu import LoaderError
from tests.ignite.side import follow, handlers, weights
from tests.ignite.table import REFUSED, row


def _run(side, make, event=Events.ITERATION_STARTED, epochs=3, groups=False, read="lr"):
    """Train under a schedule and return the values it set, the losses they led to, and the weights."""
    model = side.model()
    if groups:
        optimizer = torch.optim.SGD(
            [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.01}], lr=0.1, momentum=0.9
        )
    else:
        optimizer = side.sgd(model)
    trainer = side.trainer(model, optimizer)
    scheduler = make(optimizer)
    trainer.add_event_handler(event, scheduler)
    rates = follow(
        trainer,
        Events.ITERATION_COMPLETED,
        lambda e: ([group[read] for group in optimizer.param_groups], e.state.output),
    )
    trainer.run(side.loader(), max_epochs=epochs)
    return rates, weights(model)


@row("ParamScheduler", "BaseParamScheduler", note="base classes for schedules of your own")
def own_schedule(side):
    class Halving(handlers.ParamScheduler):
        def get_param(self):
            return 0.1 / (1 + self.event_index)

    assert issubclass(handlers.ParamScheduler, handlers.BaseParamScheduler)
    return _run(side, lambda optimizer: Halving(optimizer, "lr"))


@row("CyclicalScheduler", "LinearCyclicalScheduler")
def linear_cyclical(side):
    return _run(side, lambda optimizer: handlers.LinearCyclicalScheduler(optimizer, "lr", 0.01, 0.2, 6))


@row("CosineAnnealingScheduler", note="count its length in device calls, or attach it to an event of another unit")
def cosine(side):
    return _run(side, lambda optimizer: handlers.CosineAnnealingScheduler(optimizer, "lr", 0.2, 0.0, 18))


@row("PiecewiseLinear")
def piecewise(side):
    points = [(2, 0.05), (6, 0.3), (12, 0.01)]
    return _run(side, lambda optimizer: handlers.PiecewiseLinear(optimizer, "lr", milestones_values=points))


@row("ConcatScheduler")
def concat(side):
    def make(optimizer):
        one = handlers.LinearCyclicalScheduler(optimizer, "lr", 0.1, 0.5, 8)
        two = handlers.CosineAnnealingScheduler(optimizer, "lr", 0.5, 0.01, 6)
        return handlers.ConcatScheduler([one, two], durations=[7])

    return _run(side, make)


@row("create_lr_scheduler_with_warmup")
def warm_up(side):
    def make(optimizer):
        after = lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
        return handlers.create_lr_scheduler_with_warmup(after, 0.0, 5, warmup_end_value=0.1)

    return _run(side, make)


@row("ParamGroupScheduler", note="parameter groups keep their own rates on the device")
def param_groups(side):
    def make(optimizer):
        return handlers.ParamGroupScheduler(
            [
                handlers.CosineAnnealingScheduler(optimizer, "lr", 0.1, 0.01, 8, param_group_index=0),
                handlers.LinearCyclicalScheduler(optimizer, "lr", 0.01, 0.05, 6, param_group_index=1),
            ]
        )

    return _run(side, make, groups=True)


@row("LRScheduler", note="around any of torch's schedulers")
def torch_schedulers(side):
    kinds = {
        "step": lambda optimizer: lr_scheduler.StepLR(optimizer, 4, 0.5),
        "cosine": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 12),
        "one cycle": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.3, total_steps=20, cycle_momentum=False),
        "lambda": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step),
        "restarts": lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 5),
        "linear": lambda optimizer: lr_scheduler.LinearLR(optimizer, 0.1, total_iters=6),
    }
    records = {}
    for name, kind in kinds.items():
        side.close()
        records[name] = _run(side, lambda optimizer, kind=kind: handlers.LRScheduler(kind(optimizer)), epochs=2)
    return records


@row(
    "momentum schedules",
    note="hyper-parameters that are not zero are variable; `IPUConfig(variable=...)` makes others so",
)
def momentum(side):
    return _run(side, lambda o: handlers.LinearCyclicalScheduler(o, "momentum", 0.5, 0.95, 6), read="momentum")


@row("torch.optim.lr_scheduler", note="stepped by hand at the end of an epoch; no warning about their order")
def plain_torch(side):
    model, optimizer, trainer = side.setup()
    scheduler = lr_scheduler.MultiStepLR(optimizer, [1, 2], 0.1)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: scheduler.step())
    rates = follow(trainer, Events.ITERATION_COMPLETED, lambda e: (optimizer.param_groups[0]["lr"], e.state.output))
    trainer.run(side.loader(), max_epochs=3)
    return rates, weights(model)


@row("ReduceLROnPlateauScheduler")
def plateau(side):
    model, optimizer, trainer = side.setup()
    evaluator = side.evaluator(model, {"neg": _constant()})
    scheduler = handlers.ReduceLROnPlateauScheduler(optimizer, "neg", trainer=trainer, patience=1, factor=0.5)
    evaluator.add_event_handler(Events.COMPLETED, scheduler)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: evaluator.run(side.loader()))
    rates = follow(trainer, Events.ITERATION_COMPLETED, lambda e: (optimizer.param_groups[0]["lr"], e.state.output))
    trainer.run(side.loader(), max_epochs=6)
    return rates, weights(model)


def _constant():
    from ignite.metrics import Average

    return Average(output_transform=lambda output: 1.0)


@row(
    "StateParamScheduler",
    "LambdaStateScheduler",
    "PiecewiseLinearStateScheduler",
    "ExpStateScheduler",
    "StepStateScheduler",
    "MultiStepStateScheduler",
)
def state_schedules(side):
    _, _, trainer = side.setup()
    schedules = {
        "a": handlers.LambdaStateScheduler(lambda step: 1 / (1 + step), "a"),
        "b": handlers.PiecewiseLinearStateScheduler([(2, 0.0), (8, 1.0)], "b"),
        "c": handlers.ExpStateScheduler(1.0, 0.9, "c"),
        "d": handlers.StepStateScheduler(1.0, 0.5, 3, "d"),
        "e": handlers.MultiStepStateScheduler(1.0, 0.5, [3, 6], "e"),
    }
    for schedule in schedules.values():
        assert isinstance(schedule, handlers.StateParamScheduler)
        schedule.attach(trainer, Events.ITERATION_COMPLETED)
    seen = follow(trainer, Events.ITERATION_COMPLETED, lambda e: [getattr(e.state, name) for name in schedules])
    trainer.run(side.loader(), max_epochs=2)
    return seen


@row(
    "BatchSizeScheduler", support=REFUSED, note="a compiled program has micro-batches of one size; a change is refused"
)
def batch_size(side):
    if side.native or not hasattr(handlers, "BatchSizeScheduler"):
        return "refused", 6
    _, _, trainer = side.setup()
    loader = side.loader()
    scheduler = handlers.BatchSizeScheduler(loader, lambda step: 8 if step < 1 else 16)
    trainer.add_event_handler(Events.EPOCH_STARTED, scheduler)
    try:
        trainer.run(loader, max_epochs=3)
    except LoaderError as error:
        return "refused" if "from 8 to 16" in str(error) else str(error), trainer.state.iteration
    return "accepted", trainer.state.iteration


@row(
    "FastaiLRFinder",
    note="model, optimizer and device are restored, and the random states too: the run that follows "
    "shuffles as it would have without the finder, natively otherwise",
)
def lr_finder(side):
    model, optimizer, trainer = side.setup()
    trainer.run(side.loader(), max_epochs=1)
    before = weights(model)
    finder = handlers.FastaiLRFinder()
    to_save = {"model": model, "optimizer": optimizer}
    with finder.attach(trainer, to_save=to_save, num_iter=12, end_lr=2.0, diverge_th=20.0) as finding:
        finding.run(side.loader())
    found = finder.get_results()
    restored = weights(model)
    assert found["lr"] and all(torch.equal(restored[name], before[name]) for name in before)
    assert trainer.state.iteration == 6
    finder.apply_suggested_lr(optimizer)
    trainer.run(side.loader(), max_epochs=1)
    return found, optimizer.param_groups[0]["lr"], weights(model)
