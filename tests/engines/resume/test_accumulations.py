"""Metrics of a run that is resumed in the middle of an epoch are those of the run that was not interrupted."""

from __future__ import annotations

import collections
import logging

import ignite.metrics
import pytest
import torch
from ignite.engine import Events
from ignite.handlers import Checkpoint, EarlyStopping, EpochOutputStore
from ignite.metrics import (
    Accuracy,
    Average,
    ConfusionMatrix,
    EpochMetric,
    Loss,
    Metric,
    Precision,
    Recall,
    RunningAverage,
)
from ignite.metrics.metric import BatchWise, RunningEpochWise
from torch import nn
from torch.utils.data import DataLoader

from ignite_ipu import create_ipu_trainer
from ignite_ipu.checkpoints import read_checkpoint, write_checkpoint
from ignite_ipu.engines.resume.accumulations import Accumulations
from ignite_ipu.handlers import Recovery
from tests.supervised import pair, task

CALLS = 4


class Words(Metric):
    """A user's metric, with accumulators of every plain kind and one that is a dictionary of a kind of its own."""

    def __init__(self, threshold=0.5):
        self.threshold = threshold
        super().__init__(output_transform=lambda output: output[0])

    def reset(self):
        self.seen, self.counts, self.last, self.note = [], collections.Counter(), (None, 0), ""

    def update(self, y_pred):
        self.counts["rows"] += len(y_pred)
        self.seen.append(float(y_pred.sum()))
        self.last = (y_pred[0], self.last[1] + 1)
        self.note += "x"

    def compute(self):
        return torch.tensor([*self.seen, self.counts["rows"], self.last[1], len(self.note), self.counts["none"]])


def loss(output):
    return nn.functional.cross_entropy(*output)


def flat_mean(predictions, targets):
    return (predictions.sum() * 0.5 + targets.sum()).item()


def metrics():
    precision, recall = Precision(average=False), Recall(average=False)
    group = getattr(ignite.metrics, "MetricGroup", None)  # of Ignite 0.5.2
    return {
        "accuracy": (Accuracy(), {}),
        "loss": (Loss(nn.functional.cross_entropy), {}),
        "average": (Average(output_transform=loss), {}),
        "running": (RunningAverage(output_transform=loss), {}),
        "of a metric": (RunningAverage(Accuracy(), alpha=0.7), {}),
        "f1": ((precision * recall * 2 / (precision + recall + 1e-20)).mean(), {}),
        "matrix": (ConfusionMatrix(3), {}),
        "all outputs": (EpochMetric(flat_mean, check_compute_fn=False), {}),
        **({"group": (group({"a": Accuracy(), "l": Loss(nn.functional.cross_entropy)}), {})} if group else {}),
        "batches": (Accuracy(), {"usage": BatchWise()}),
        "epochs": (RunningAverage(Accuracy()), {"usage": RunningEpochWise()}),
        "words": (Words(), {}),
    }


def make(names=None):
    """A trainer with metrics, and a log of their values after every iteration and epoch."""
    torch.manual_seed(0)
    model, optimizer = pair(momentum=0.9)
    trainer = create_ipu_trainer(
        model, optimizer, nn.CrossEntropyLoss(), output_transform=lambda x, y, y_pred, loss: (y_pred, y), seed=1
    )
    for name, (metric, usage) in metrics().items():
        if names is None or name in names:
            metric.attach(trainer, name, **usage)
    store = EpochOutputStore(output_transform=lambda output: output[0].sum().item())
    store.attach(trainer, "outputs")
    return trainer, {"trainer": trainer, "model": model, "optimizer": optimizer}, store


LOADER = DataLoader(task(32), batch_size=8, shuffle=True)


def values(trainer):
    return {name: _plain(value) for name, value in trainer.state.metrics.items()}, list(trainer.state.outputs)


def _plain(value):
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value.tolist() if isinstance(value, torch.Tensor) else value


@pytest.fixture(scope="module")
def expected():
    """The values at the ends of the epochs of a run that is not interrupted."""
    trainer, _, _ = make()
    found = []
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: found.append(values(trainer)))
    trainer.run(LOADER, max_epochs=2)
    return found


@pytest.mark.parametrize("iteration", range(1, 2 * CALLS))
def test_every_metric_goes_on_adding_up(tmp_path, expected, iteration):
    """Wherever in an epoch the run was interrupted, its epochs end with the values of the whole run, bit for bit."""
    first, objects, _ = make()
    path = tmp_path / "checkpoint.pt"

    def save(engine):
        write_checkpoint(path, {name: value.state_dict() for name, value in objects.items()})
        engine.terminate()

    first.add_event_handler(Events.ITERATION_COMPLETED(once=iteration), save)
    first.run(LOADER, max_epochs=2)

    second, objects, _ = make()
    found = []
    second.add_event_handler(Events.EPOCH_COMPLETED, lambda: found.append(values(second)))
    for name, state in read_checkpoint(path).items():
        objects[name].load_state_dict(state)
    second.run(LOADER, max_epochs=2)
    assert found == expected[-len(found) :]
    assert len(found) == (2 if iteration <= CALLS else 1)


def test_handlers_of_the_end_of_an_epoch_have_their_turn(tmp_path):
    """A run killed between an epoch's last iteration and its end goes on with the end: schedules, evaluations, logs."""
    results = []
    for interrupted in (None, CALLS, 2 * CALLS):
        path = tmp_path / f"{interrupted}.pt"
        ends = []

        def run(saving, loading, ends=ends, path=path):
            trainer, objects, _ = make(names=["accuracy"])
            objects["scheduler"] = torch.optim.lr_scheduler.ExponentialLR(objects["optimizer"], 0.5)

            def save(engine):
                write_checkpoint(path, {name: value.state_dict() for name, value in objects.items()})
                raise KeyboardInterrupt

            if saving:
                trainer.add_event_handler(Events.ITERATION_COMPLETED(once=saving), save)
            trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: objects["scheduler"].step())
            trainer.add_event_handler(
                Events.EPOCH_COMPLETED, lambda: ends.append((trainer.state.epoch, values(trainer)[0]))
            )
            trainer.add_event_handler(Events.COMPLETED, lambda: ends.append("completed"))
            if loading:
                for name, state in read_checkpoint(path).items():
                    objects[name].load_state_dict(state)
            try:
                trainer.run(LOADER, max_epochs=2)
            except KeyboardInterrupt:
                assert saving
            return [weight.tolist() for weight in objects["model"].state_dict().values()]

        if interrupted:
            run(interrupted, False)
            assert len(ends) == interrupted // CALLS - 1
        results.append((run(None, bool(interrupted)), ends))
    assert results[1] == results[0]
    assert results[2] == results[0]


def test_a_run_whose_end_was_handled_stays_ended():
    """Its metrics and stores are those of the end."""
    trainer, _, _ = make()
    trainer.run(LOADER, max_epochs=2)
    again, _, _ = make()
    again.load_state_dict(trainer.state_dict())
    again.add_event_handler(Events.EPOCH_COMPLETED, lambda: pytest.fail("the end is repeated"))
    again.run(LOADER, max_epochs=2)
    assert values(again) == values(trainer)


def test_patience_is_not_given_anew():
    """`EarlyStopping.attach` resets the handler when a run starts; a resumed one goes on counting."""
    trainer, _, _ = make(names=["accuracy"])

    def patient(trainer):
        handler = EarlyStopping(patience=3, score_function=lambda engine: -engine.state.iteration, trainer=trainer)
        if not hasattr(handler, "attach"):
            pytest.skip("this Ignite's EarlyStopping is attached as a function, and is not reset")
        handler.attach(trainer, Events.EPOCH_COMPLETED)
        return handler

    patient(trainer)
    trainer.run(LOADER, max_epochs=3)
    again, _, _ = make(names=["accuracy"])
    handler = patient(again)
    again.load_state_dict(trainer.state_dict())
    again.run(LOADER, max_epochs=10)
    assert (again.state.epoch, handler.counter) == (4, 3)


def test_configuration_is_the_program_s():
    """The configuration of a metric is not part of the state: a resumed run may change it."""
    accumulations = Accumulations()
    old, new = Words(threshold=0.5), Words(threshold=0.9)
    accumulations.note(old.started, ())
    old.update(torch.ones(2, 3))
    state = accumulations.state_dict({})
    again = Accumulations()
    again.note(new.started, ())
    assert again.load_state_dict(state, {}) == []
    assert (new.seen, new.counts, new.threshold) == ([6.0], {"rows": 2}, 0.9)
    assert isinstance(new.counts, collections.Counter)


class Queue(Metric):
    """Keeps a value that no checkpoint holds."""

    def reset(self):
        self.items = {0}

    def update(self, output):
        self.items.add(len(self.items))

    def compute(self):
        return len(self.items)


def test_what_cannot_be_carried_is_said(caplog):
    """A metric that keeps anything but plain data, and one that the checkpoint does not know, start anew by name."""
    trainer, _, _ = make(names=["accuracy"])
    Queue().attach(trainer, "queue")
    states = []
    trainer.add_event_handler(Events.ITERATION_COMPLETED(once=2), lambda: states.append(trainer.state_dict()))
    trainer.run(LOADER)
    again, _, _ = make(names=["accuracy", "loss"])
    Queue().attach(again, "queue")
    again.load_state_dict(states[0])
    with caplog.at_level(logging.WARNING, "ignite_ipu"):
        again.run(LOADER)
    assert "does not hold what loss, queue had added up" in caplog.text


def test_a_checkpoint_before_a_metric_is_said(caplog):
    """Handlers are called in the order in which they are attached: such a checkpoint lacks the metric's last step."""
    trainer, objects, _ = make(names=["accuracy"])
    trainer.add_event_handler(Events.ITERATION_COMPLETED(every=2), Checkpoint(objects, lambda *arguments: None))
    with caplog.at_level(logging.WARNING, "ignite_ipu"):
        Average().attach(trainer, "average")
    assert "A Average is attached after a Checkpoint" in caplog.text


def test_an_exit_for_a_reset_carries_metrics(tmp_path):
    """The state that `Recovery` saves is of between two iterations, in whatever order handlers were attached."""
    import ignite_ipu.emulator as poptorch

    whole, _, _ = make()
    whole.run(LOADER, max_epochs=2)
    trainer, _, _ = make()
    Recovery(tmp_path, every=1).attach(trainer)
    with poptorch.inject_faults({6: poptorch.Fault("FULL_RESET")}), pytest.raises(SystemExit):
        trainer.run(LOADER, max_epochs=2)
    again, _, _ = make()
    assert Recovery(tmp_path, resume="auto").attach(again).name == "recovery_6.pt"
    again.run(LOADER, max_epochs=2)
    assert values(again) == values(whole)
