"""Actions and messages of `Recovery` for each kind of fault."""

from __future__ import annotations

import collections
import copy as copy_module
import gc
import logging
import weakref

import pytest
import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from torch import nn
from torch.utils.data import DataLoader

import ignite_ipu.emulator as poptorch
from ignite_ipu import IPUEvents, create_ipu_averages_evaluator, create_ipu_evaluator, create_ipu_trainer
from ignite_ipu.checkpoints import CheckpointError, read_checkpoint
from ignite_ipu.errors import RecoveryError
from ignite_ipu.handlers import Recovery
from ignite_ipu.handlers.recovery.decisions import EXIT_RESET_NEEDED, resume_command
from tests.supervised import assert_same_weights, network, pair, task, train_natively


def trainer_of(seed=None, **settings):
    model, optimizer = pair(momentum=0.9, **settings)
    return create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss(), seed=seed), model, optimizer


LOADER = DataLoader(task(), batch_size=8)


def faults(*calls, action="IPU_RESET"):
    return poptorch.inject_faults({call: poptorch.Fault(action) for call in calls})


def test_every_decision_is_an_event_and_stands_in_the_state(tmp_path):
    """Handlers can read the faults and decisions in `state.recovery`."""
    trainer, _, _ = trainer_of()
    seen = []
    trainer.add_event_handler(IPUEvents.DEVICE_FAULT, lambda: seen.append(("fault", trainer.state.iteration)))
    trainer.add_event_handler(IPUEvents.DEVICE_RECOVERED, lambda: seen.append(("recovered", trainer.state.iteration)))
    Recovery(tmp_path, backoff=0.0).attach(trainer)
    with faults(2, 3):
        trainer.run(LOADER)
    assert seen == [("fault", 3), ("fault", 3), ("recovered", 3)]
    status = trainer.state.recovery
    assert (status.faults, status.recoveries) == (2, 1)
    assert [(d.iteration, d.attempt, d.action) for d in status.decisions] == [(3, 1, "retry"), (3, 2, "retry")]


def test_a_trainer_that_is_dropped_gives_its_ipus_back(tmp_path):
    """Nothing of the handler keeps it alive, the user's optimizer neither."""
    trainer, _, optimizer = trainer_of()
    Recovery(tmp_path, backoff=0.0).attach(trainer)
    with faults(2):
        trainer.run(LOADER)
    session, executor = weakref.ref(trainer.ipu), weakref.ref(trainer.ipu.training.executor)
    del trainer
    gc.collect()
    assert session() is None and executor() is None
    assert all(torch.isfinite(state["momentum_buffer"]).all() for state in optimizer.state.values())


def test_the_waits_double(tmp_path, monkeypatch):
    """Back-off before each retry of one call."""
    trainer, _, _ = trainer_of()
    recovery = Recovery(tmp_path, backoff=0.5)
    waits = []
    monkeypatch.setattr(recovery, "_sleep", waits.append)
    recovery.attach(trainer)
    with faults(2, 3, 4):
        trainer.run(LOADER)
    assert waits == [0.5, 1.0, 2.0]


def test_too_many_faults_of_one_call_end_the_run_with_everything_saved(tmp_path):
    """The error names the place of the state and the way to go on; the model has it, and works in eager PyTorch."""
    trainer, model, optimizer = trainer_of()
    recovery = Recovery(tmp_path, every=2, retries=1, backoff=0.0, command="python train.py")
    recovery.attach(trainer)
    with poptorch.inject_faults({call: poptorch.Fault() for call in range(5, 40)}):
        with pytest.raises(
            RecoveryError, match=r"failed 2 time.*after iteration 5 .*Go on with: python train\.py"
        ) as error:
            trainer.run(LOADER)
    assert isinstance(error.value.__cause__, poptorch.RecoverableError)
    saved = read_checkpoint(recovery.status.saved)
    assert saved["trainer"]["iteration"] == 5
    for name, value in model.state_dict().items():
        assert torch.equal(value, saved["model"][name]), name
    for number, slots in optimizer.state_dict()["state"].items():
        assert torch.equal(slots["momentum_buffer"], saved["optimizer"]["state"][number]["momentum_buffer"])
    shorter, reference, _ = trainer_of()
    shorter.run(LOADER, epoch_length=5)
    assert_same_weights(model, reference)
    model(torch.randn(2, 6)).sum().backward()


def test_an_unrecoverable_fault_is_not_retried(tmp_path):
    trainer, _, _ = trainer_of()
    recovery = Recovery(tmp_path, every=1)
    recovery.attach(trainer)
    with poptorch.inject_faults({3: poptorch.Fault(None, "double bit error")}):
        with pytest.raises(RecoveryError, match="double bit error"):
            trainer.run(LOADER)
    assert [decision.action for decision in recovery.status.decisions] == ["stop"]
    assert read_checkpoint(tmp_path / "recovery_3.pt")["trainer"]["iteration"] == 3


@pytest.mark.parametrize("action", ["LINK_RESET", "PARTITION_RESET", "FULL_RESET"])
def test_a_reset_without_a_hook_ends_the_process(tmp_path, caplog, action):
    """With code 76, everything saved, and the command that goes on in the log."""
    trainer, _, _ = trainer_of()
    Recovery(tmp_path, every=1).attach(trainer)
    with faults(4, action=action), caplog.at_level(logging.ERROR, "ignite_ipu"):
        with pytest.raises(SystemExit) as error:
            trainer.run(LOADER)
    assert error.value.code == EXIT_RESET_NEEDED
    assert action in caplog.text and resume_command() in caplog.text
    again, model, _ = trainer_of()
    assert Recovery(tmp_path, resume="auto").attach(again).name == "recovery_4.pt"
    again.run(LOADER)
    whole, reference, _ = trainer_of()
    whole.run(LOADER)
    assert_same_weights(model, reference, rtol=0, atol=0)


def test_the_reset_hook_runs_while_no_ipus_are_held(tmp_path):
    trainer, _, _ = trainer_of()
    seen = []

    def reset(action):
        seen.append((action, trainer.ipu.training.ready))

    Recovery(tmp_path, reset=reset, backoff=0.0).attach(trainer)
    with faults(4, action="PARTITION_RESET"):
        trainer.run(LOADER)
    assert seen == [("PARTITION_RESET", False)]


def test_a_failing_hook_ends_the_run_with_everything_saved(tmp_path):
    trainer, _, _ = trainer_of()

    def reset(action):
        raise OSError("no permission to reset")

    Recovery(tmp_path, reset=reset, every=1, backoff=0.0).attach(trainer)
    with faults(4, action="FULL_RESET"), pytest.raises(RecoveryError, match="no permission"):
        trainer.run(LOADER)
    assert (tmp_path / "recovery_4.pt").exists()


@torch.no_grad()
def clamp(model, _):
    model[0].weight.clamp_(-0.2, 0.2)


def write_momentum(_, optimizer):
    for entries in optimizer.state.values():
        entries["momentum_buffer"].data.mul_(-0.5)


def put_momentum(_, optimizer):
    for entries in optimizer.state.values():
        entries["momentum_buffer"] = entries["momentum_buffer"] * -0.5


def replace_state(_, optimizer):
    new = {key: {"momentum_buffer": entries["momentum_buffer"] * -0.5} for key, entries in optimizer.state.items()}
    optimizer.state = collections.defaultdict(dict, new)


WRITES = {
    "load weights": lambda model, _: model.load_state_dict(network().state_dict()),
    "write weights": clamp,
    "load state": lambda _, optimizer: optimizer.load_state_dict({**optimizer.state_dict(), "state": {}}),
    "write momentum": write_momentum,
    "put momentum": put_momentum,
    "remove an entry": lambda model, optimizer: optimizer.state.pop(model[0].weight),
    "clear state": lambda _, optimizer: optimizer.state.clear(),
    "replace state": replace_state,
}


@pytest.mark.parametrize("write", WRITES)
def test_values_that_code_writes_between_two_calls_are_part_of_the_repetition(tmp_path, write):
    """As Ignite trains; faults hit later calls, and the copy for an evaluation after the write."""

    def run(create, evaluate, faulty):
        model, optimizer = pair(momentum=0.9)
        trainer, losses = create(model, optimizer, nn.CrossEntropyLoss()), []
        evaluator = evaluate(model)

        def write_and_evaluate():
            WRITES[write](model, optimizer)
            with poptorch.inject_faults({}, copies={0: poptorch.Fault("IPU_RESET")}):
                evaluator.run(LOADER)

        trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: losses.append(trainer.state.output))
        trainer.add_event_handler(Events.ITERATION_COMPLETED(once=3), write_and_evaluate)
        if faulty:
            Recovery(tmp_path, every=100, backoff=0.0).attach(trainer)
        with faults(*faulty):
            trainer.run(LOADER)
        assert not faulty or trainer.state.recovery.faults == 1 + len(faulty)
        momentum = [optimizer.state[each]["momentum_buffer"] for each in model.parameters()]
        return losses, list(model.parameters()), momentum

    expected = run(create_supervised_trainer, create_supervised_evaluator, ())
    actual = run(create_ipu_trainer, create_ipu_evaluator, (4, 6, 10))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-6)


class LoadsAsItGoes:
    """Loads the first weights after the fourth iteration, and after the sixth the optimizer's state of the second.

    After the seventh it writes into that.
    """

    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.weights = copy_module.deepcopy(model.state_dict())

    def __call__(self, iteration):
        if iteration == 2:
            self.state = copy_module.deepcopy(self.optimizer.state_dict())
        elif iteration == 4:
            self.model.load_state_dict(self.weights)
        elif iteration == 6:
            self.optimizer.load_state_dict(self.state)
        elif iteration == 7:
            write_momentum(self.model, self.optimizer)


def test_a_fault_of_a_copy_loses_nothing_that_was_loaded(tmp_path):
    """At any failing copy: values that only the host has, and values that only the device has, stay."""
    results, faults_seen = [], []
    for copy in (None, *range(30)):
        if copy and not faults_seen[-1]:
            break  # the run makes no more copies
        trainer, model, optimizer = trainer_of()
        load = LoadsAsItGoes(model, optimizer)
        trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda engine, load=load: load(engine.state.iteration))
        Recovery(tmp_path, every=100, backoff=0.0).attach(trainer)
        broken = {} if copy is None else {copy: poptorch.Fault()}
        with poptorch.inject_faults({}, copies=broken):
            trainer.run(LOADER)
            trainer.ipu.close()
        faults_seen.append(trainer.state.recovery.faults)
        results.append((model, optimizer.state_dict()["state"]))
    assert faults_seen[0] == 0 and sum(faults_seen) >= 10 and faults_seen[-1] == 0
    for model, state in results[1:]:
        assert_same_weights(model, results[0][0], rtol=0, atol=0)
        for number, slots in state.items():
            assert torch.equal(slots["momentum_buffer"], results[0][1][number]["momentum_buffer"])
    native, optimizer = pair(momentum=0.9)
    load = LoadsAsItGoes(native, optimizer)
    for iteration, batch in enumerate(LOADER, 1):
        train_natively(native, optimizer, [batch])
        load(iteration)
    assert_same_weights(results[0][0], native)
    for number, slots in optimizer.state_dict()["state"].items():
        torch.testing.assert_close(results[0][1][number]["momentum_buffer"], slots["momentum_buffer"])


def test_a_copy_that_keeps_failing_ends_the_run(tmp_path):
    """Also where the user's own code asked for it."""
    trainer, model, _ = trainer_of()
    Recovery(tmp_path, every=2, retries=1, backoff=0.0).attach(trainer)
    trainer.add_event_handler(Events.ITERATION_COMPLETED(once=4), lambda: model.state_dict())
    with poptorch.inject_faults({}, copies={number: poptorch.Fault() for number in range(8, 40)}):
        with pytest.raises(RecoveryError, match=r"failed 2 time.*in .*recovery_"):
            trainer.run(LOADER)
    model(torch.randn(2, 6)).sum().backward()


def test_averages_on_the_device_are_guarded_too(tmp_path):
    """Evaluations that add up on the device are made again like others."""
    values = []
    for calls in ((), (9, 10)):
        trainer, model, _ = trainer_of()
        averages = {"loss": lambda y_pred, y: nn.functional.cross_entropy(y_pred, y, reduction="none")}
        evaluator = create_ipu_averages_evaluator(model, averages)
        Recovery(tmp_path, backoff=0.0).attach(trainer)
        with faults(*calls):
            trainer.run(LOADER)
            values.append(evaluator.run(LOADER).metrics["loss"])
        assert trainer.state.recovery.faults == len(calls)
    assert values[0] == values[1]


def test_a_snapshot_takes_one_download(tmp_path):
    """Of the weights, and one of the optimizer's state; nothing is downloaded in between."""
    trainer, _, _ = trainer_of()
    Recovery(tmp_path, every=4).attach(trainer)
    trainer.run(LOADER, max_epochs=2)
    counted = poptorch.counters(trainer.ipu.training.executor)
    # The first iteration's, and every fourth after it; the run's end downloads once more.
    assert trainer.state.recovery.snapshots == 5
    assert counted.weight_downloads <= 5 and counted.optimizer_state_downloads <= 6


def test_the_guard_ends_with_the_training(tmp_path):
    """After `stop_training` and after `close`: the next trainer has no guard, and takes one of its own."""
    trainer, model, optimizer = trainer_of()
    first = Recovery(tmp_path / "first", backoff=0.0)
    first.attach(trainer)
    trainer.run(LOADER)
    executor = weakref.ref(trainer.ipu.training.executor)
    trainer.ipu.stop_training()
    gc.collect()
    assert executor() is None and trainer.ipu.hooks.guard is None
    trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss())
    with faults(2), pytest.raises(poptorch.RecoverableError):
        trainer.run(LOADER)
    assert first.status.faults == 0
    trainer.ipu.close()
    trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss())
    second = Recovery(tmp_path / "second", backoff=0.0)
    second.attach(trainer)
    trainer.ipu.close()
    trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss())
    second.attach(trainer)
    with faults(2):
        trainer.run(LOADER)
    assert (first.status.faults, second.status.recoveries) == (0, 1)


@pytest.mark.parametrize("event", [Events.EPOCH_COMPLETED, Events.COMPLETED])
def test_a_handler_may_close_the_session_before_the_guard_has_heard_of_the_event(tmp_path, event):
    """The guard ends within an event of its own."""
    trainer, model, _ = trainer_of()
    trainer.add_event_handler(event, trainer.ipu.close)
    Recovery(tmp_path).attach(trainer)
    trainer.run(LOADER)
    whole, reference, _ = trainer_of()
    whole.run(LOADER)
    assert_same_weights(model, reference, rtol=0, atol=0)


def test_a_trainer_whose_resumption_fails_is_not_guarded(tmp_path):
    """Attaching another handler, or the same with another checkpoint, is the way on."""
    trainer, _, _ = trainer_of()
    (tmp_path / "cut.pt").write_bytes(b"PK")
    with pytest.raises(CheckpointError, match=r"cut\.pt is not a complete checkpoint"):
        Recovery(tmp_path, resume=str(tmp_path / "cut.pt")).attach(trainer)
    assert trainer.ipu.hooks.guard is None
    Recovery(tmp_path, backoff=0.0).attach(trainer)
    with faults(2):
        trainer.run(LOADER)
    assert trainer.state.recovery.recoveries == 1


def test_wrong_uses(tmp_path):
    """One handler per trainer; names of the run's own objects are theirs."""
    trainer, _, _ = trainer_of()
    with pytest.raises(ValueError, match="at least 1"):
        Recovery(tmp_path, every=0)
    with pytest.raises(ValueError, match="not this trainer's model"):
        Recovery(tmp_path, {"model": nn.Linear(2, 2)}).attach(trainer)
    Recovery(tmp_path).attach(trainer)
    with pytest.raises(ValueError, match="guarded already"):
        Recovery(tmp_path).attach(trainer)
