"""Engines: the order of calls, and the begin, end, pause and resumption of runs."""

from __future__ import annotations

import functools
import inspect

import pytest
import torch
from ignite.engine import DeterministicEngine, Engine, EventEnum, Events, State
from ignite.engine.events import CallableEventWithFilter, EventsList
from ignite.metrics import Accuracy
from torch import nn
from torch.utils.data import DataLoader

from ignite_ipu import IPUSession, ipu_evaluation_step, ipu_training_step
from tests.ignite.side import follow, losses, weights
from tests.ignite.table import DIFFERS, REFUSED, row

_EVENTS = [
    event
    for event in Events
    if event.name not in ("EXCEPTION_RAISED", "INTERRUPT", "TERMINATE", "TERMINATE_SINGLE_EPOCH")
]


@row("create_supervised_trainer", note="`create_ipu_trainer` takes the same arguments")
def trainer(side):
    model, optimizer, engine = side.setup()
    seen = losses(engine)
    engine.run(side.loader(), max_epochs=2)
    return seen, weights(model), optimizer.state_dict()["state"]


@row(
    "create_supervised_evaluator",
    note="`create_ipu_evaluator` takes the same arguments; an incomplete last batch counts",
)
def evaluator(side):
    engine = side.evaluator(side.model(), {"accuracy": Accuracy()})
    outputs = follow(engine, Events.ITERATION_COMPLETED, lambda e: e.state.output)
    engine.run(side.loader(samples=45))
    return outputs, engine.state.metrics


@row(
    "supervised_training_step",
    "supervised_evaluation_step",
    note="`ipu_training_step` and `ipu_evaluation_step` of a session",
)
def steps(side):
    from ignite.engine import supervised_evaluation_step, supervised_training_step

    model = side.model()
    optimizer = side.sgd(model)
    if side.native:
        loss_fn = nn.CrossEntropyLoss()
        train = Engine(supervised_training_step(model, optimizer, loss_fn))
        evaluate = Engine(supervised_evaluation_step(model))
    else:
        side.trainer(model, optimizer)
        train = Engine(ipu_training_step(IPUSession.of(model)))
        evaluate = Engine(ipu_evaluation_step(IPUSession.of(model)))
    seen = losses(train)
    train.run(list(side.loader()), max_epochs=1)
    outputs = follow(evaluate, Events.ITERATION_COMPLETED, lambda e: e.state.output)
    evaluate.run(list(side.loader()))
    return seen, outputs


@row(
    "supervised_training_step_amp",
    "supervised_evaluation_step_amp",
    support=DIFFERS,
    note='`amp_mode="amp"`: products and convolutions in half precision; see [precision](precision.md)',
    tolerance=2e-2,
)
def half_precision(side):
    half = torch.ones(1, 1, dtype=torch.float16)
    try:
        half @ half
    except RuntimeError:
        pytest.skip("this PyTorch cannot compute in half precision on a CPU")
    model = side.model()
    kwargs = {} if side.native else {"amp_mode": "amp"}
    engine = side.trainer(model, side.sgd(model), **kwargs)
    seen = losses(engine)
    engine.run(side.loader(), max_epochs=2)
    predict = side.evaluator(model, **kwargs)
    return seen, predict.run(side.loader()).output


@row(
    "supervised_training_step_apex",
    "supervised_training_step_tpu",
    support=REFUSED,
    note="they drive other devices; so are `amp_mode` of another name and a `device` that is no IPU",
)
def other_devices(side):
    model = side.model()
    answers = []
    for kwargs in ({"amp_mode": "apex"}, {"device": "xla"}, {"amp_mode": "nonsense"}):
        if side.native:
            answers.append("refused")
            continue
        try:
            side.trainer(model, side.sgd(model), **kwargs)
        except ValueError as error:
            answers.append("refused" if next(iter(kwargs.values())) in str(error) else str(error))
    return answers


@row(
    "Engine", "State", "Events", *[f"Events.{event.name}" for event in _EVENTS], note="every event, in the native order"
)
def events_in_order(side):
    _, _, engine = side.setup()
    seen = []
    for event in _EVENTS:
        engine.add_event_handler(event, lambda event: seen.append((event.name, engine.state.iteration)), event)
    engine.run(side.loader(), max_epochs=2)
    assert isinstance(engine, Engine) and isinstance(engine.state, State)
    state = engine.state
    return seen, state.epoch, state.max_epochs, state.epoch_length, state.seed, state.iteration


@row("CallableEventWithFilter", "EventsList", note="every, once, before, after, filters and unions")
def filtered_events(side):
    _, _, engine = side.setup()
    events = {
        "every": Events.ITERATION_COMPLETED(every=4),
        "once": Events.ITERATION_STARTED(once=3),
        "several": Events.ITERATION_STARTED(once=[2, 5]),
        "before": Events.ITERATION_COMPLETED(before=3),
        "after": Events.EPOCH_COMPLETED(after=1),
        "filter": Events.ITERATION_COMPLETED(event_filter=lambda engine, event: event in (1, 7)),
        "union": Events.EPOCH_STARTED | Events.ITERATION_COMPLETED(every=5),
    }
    assert isinstance(events["every"], CallableEventWithFilter) and isinstance(events["union"], EventsList)
    seen = {name: follow(engine, event, lambda e: (e.state.epoch, e.state.iteration)) for name, event in events.items()}
    engine.run(side.loader(), max_epochs=3)
    return seen


@row("EventEnum", note="custom events, with counts of their own for filters")
def custom_events(side):
    class Mine(EventEnum):
        LOW = "low"

    _, _, engine = side.setup()
    engine.register_events(*Mine, event_to_attr={Mine.LOW: "lows"})
    engine.register_events("plain")
    engine.state.lows = 0

    @engine.on(Events.ITERATION_COMPLETED)
    def check():
        engine.fire_event("plain")
        if engine.state.output < 1.2:
            engine.state.lows += 1
            engine.fire_event(Mine.LOW)

    lows = follow(engine, Mine.LOW(every=2), lambda e: e.state.iteration)
    plain = follow(engine, "plain", lambda e: e.state.iteration)
    engine.run(side.loader(), max_epochs=3)
    return lows, plain


@row("RemovableEventHandle", note="`handle.remove()`, `with handle:`, `has_event_handler`")
def removable_handle(side):
    _, _, engine = side.setup()
    seen = []
    handler = functools.partial(seen.append, "called")
    handle = engine.add_event_handler(Events.ITERATION_COMPLETED, lambda: handler())
    engine.add_event_handler(Events.ITERATION_COMPLETED(once=3), lambda: handle.remove())
    with engine.add_event_handler(Events.EPOCH_COMPLETED, lambda: seen.append("epoch")):
        engine.run(side.loader(), max_epochs=1)
    engine.run(side.loader(), max_epochs=1)
    return seen


@row(
    "Events.TERMINATE",
    "Events.TERMINATE_SINGLE_EPOCH",
    note="`terminate`, `terminate_epoch`, `terminate(skip_completed=True)`",
)
def terminate(side):
    model, _, engine = side.setup()
    seen = losses(engine)
    ends = follow(engine, Events.TERMINATE | Events.COMPLETED, lambda e: e.state.iteration)
    engine.add_event_handler(Events.ITERATION_COMPLETED(once=2), lambda: engine.terminate_epoch())
    engine.add_event_handler(Events.ITERATION_COMPLETED(once=7), lambda: engine.terminate())
    engine.run(side.loader(), max_epochs=3)
    return seen, ends, weights(model)


@row("Events.INTERRUPT", note="`interrupt` pauses a run; the next `run()` goes on where it was")
def interrupt(side):
    model, _, engine = side.setup()
    seen = losses(engine)
    stops = follow(engine, Events.INTERRUPT, lambda e: e.state.iteration)
    engine.add_event_handler(Events.ITERATION_COMPLETED(once=4), lambda: engine.interrupt())
    engine.run(side.loader(), max_epochs=2)
    paused = weights(model)
    engine.run()
    return seen, stops, paused, weights(model)


@row(
    "Events.EXCEPTION_RAISED", note="a handler sees the exception; without one the IPUs are given back and it is raised"
)
def exception(side):
    model, _, engine = side.setup()
    seen = []

    @engine.on(Events.ITERATION_COMPLETED(once=3))
    def fail():
        raise ValueError("stop here")

    @engine.on(Events.EXCEPTION_RAISED)
    def note(error):
        seen.append(str(error))

    engine.run(side.loader(), max_epochs=1)
    return seen, engine.state.iteration, weights(model)


@row(
    "DeterministicEngine",
    note="`deterministic=True`: the same shuffles; a resume inside an epoch keeps them, natively only with workers",
)
def deterministic(side):
    def run(epochs, stop_at=None, state=None):
        side.close()
        model = side.model()
        engine = side.trainer(model, side.sgd(model), deterministic=True)
        assert isinstance(engine, DeterministicEngine)
        batches = follow(engine, Events.GET_BATCH_COMPLETED, lambda e: e.state.batch[1].tolist())
        saved = {}
        if stop_at is not None:
            engine.add_event_handler(
                Events.ITERATION_COMPLETED(once=stop_at), lambda: saved.update(engine.state_dict())
            )
        if state is not None:
            engine.load_state_dict(state)
        torch.manual_seed(12)
        engine.run(side.loader(shuffle=True), max_epochs=epochs)
        return batches, saved

    whole, state = run(3, stop_at=6)
    rest, _ = run(3, state=state)
    keys = [key for key in state if key != "ipu"]
    assert rest == whole[6:]
    if not side.native:
        for stop_at in (1, 8, 17):
            assert run(3, state=run(3, stop_at=stop_at)[1])[0] == whole[stop_at:]
    return whole, rest, keys


@row(
    "Engine.state_dict",
    note="also holds random states, counts and what attached metrics have added up; native ones load",
)
def state_dict(side):
    _, _, engine = side.setup()
    engine.state_dict_user_keys.append("alpha")
    engine.state.alpha = 0.5
    engine.run(side.loader(), max_epochs=2)
    saved = {key: value for key, value in engine.state_dict().items() if key != "ipu"}
    side.close()
    _other, _optimizer, engine = side.setup()
    engine.state_dict_user_keys.append("alpha")
    engine.load_state_dict(saved)
    seen = follow(engine, Events.EPOCH_COMPLETED, lambda e: (e.state.epoch, e.state.iteration, e.state.alpha))
    engine.run(side.loader(), max_epochs=4)
    return saved, seen


@row(
    "Engine.load_state_dict",
    support=DIFFERS,
    note=(
        "a run that was loaded at its end stays ended, while natively the same call makes it once more; with "
        "`engine.state.max_epochs = None` it begins anew, and an earlier `max_epochs` is a ValueError, as natively"
    ),
)
def load_state_dict(side):
    _, _, engine = side.setup()
    engine.load_state_dict({"epoch": 2, "max_epochs": 2, "epoch_length": 6})
    try:
        engine.run(side.loader(), max_epochs=1)
    except ValueError as error:
        refused = str(error)
    _, _, other = side.setup()
    other.load_state_dict({"epoch": 2, "max_epochs": 2, "epoch_length": 6})
    again = losses(other)
    other.run(side.loader(), max_epochs=2)
    assert len(again) == (12 if side.native else 0)
    engine.state.max_epochs = None
    anew = losses(engine)
    engine.run(side.loader(), max_epochs=1)
    return refused, anew


@row(
    "State.dataloader",
    support=DIFFERS,
    note=(
        "a `CallLoader` over the `DataLoader` that `run` was given: `len()` counts device calls, its other attributes "
        "are those of that loader"
    ),
)
def dataloader(side):
    model = side.model()
    engine = side.trainer(model, side.sgd(model), gradient_accumulation_steps=2)
    loader = side.loader()
    used = engine.run(loader).dataloader
    if not side.native:
        assert used is not loader
        assert (used.batch_size, len(used)) == (loader.batch_size, len(loader) // 2)
    return used.dataset is loader.dataset


@row("Engine.run(epoch_length)", note="shorter or longer than the loader, and data without a length")
def epoch_length(side):
    records = []
    for data, length in ((side.loader(), 4), (side.loader(), 8), (iter(side.loader()), None)):
        side.close()
        _, _, engine = side.setup()
        seen = losses(engine)
        engine.run(data, max_epochs=2 if length else 1, epoch_length=length)
        records.append((seen, engine.state.epoch, engine.state.epoch_length))
    return records


@row("Engine.run(max_iters)")
def max_iters(side):
    if "max_iters" not in inspect.signature(Engine.run).parameters:
        return "not in this release"
    _, _, engine = side.setup()
    seen = losses(engine)
    engine.run(side.loader(), max_iters=9)
    return seen, engine.state.epoch


@row("Engine.set_data")
def set_data(side):
    _, _, engine = side.setup()
    seen = losses(engine)
    other = DataLoader(side.data(96), batch_size=8)
    engine.add_event_handler(Events.ITERATION_COMPLETED(once=2), lambda: engine.set_data(other))
    engine.run(side.loader(), max_epochs=2)
    return seen


@row("Engine.run_as_generator")
def run_as_generator(side):
    if not hasattr(Engine, "debug") and not hasattr(Engine, "interrupt_resume_enabled"):
        return "not in this release"
    _, _, engine = side.setup()
    seen = losses(engine)
    engine.run(side.loader(), max_epochs=1)
    engine.run(side.loader(), max_epochs=2)
    return seen
