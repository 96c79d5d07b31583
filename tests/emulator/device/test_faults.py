"""Faults on demand: errors of a program when the hardware fails, and its state afterwards."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ignite_ipu.emulator as poptorch
from ignite_ipu.emulator import Fault, inject_faults
from ignite_ipu.emulator.errors import RECOVERY_ACTIONS

X, Y = torch.linspace(-1, 1, 12).view(4, 3), torch.linspace(0, 1, 8).view(4, 2)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x, y):
        return nn.functional.mse_loss(self.linear(x), y)


def training() -> poptorch.PoplarExecutor:
    torch.manual_seed(0)
    model = Model()
    return poptorch.trainingModel(model, optimizer=poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5))


def test_the_call_with_the_number_fails_and_no_other():
    executor = training()
    with inject_faults({2: Fault(message="lost it")}):
        executor(X, Y)
        executor(X, Y)
        with pytest.raises(poptorch.RecoverableError, match="lost it"):
            executor(X, Y)
        executor(X, Y)
    executor(X, Y)


@pytest.mark.parametrize("action", RECOVERY_ACTIONS)
def test_a_recoverable_fault_tells_how_to_recover(action):
    with inject_faults({0: Fault(action)}), pytest.raises(poptorch.RecoverableError) as caught:
        training()(X, Y)
    assert caught.value.recovery_action == action
    assert caught.value.type == "poplar_recoverable_runtime_error"
    assert isinstance(caught.value, poptorch.Error)


def test_an_unrecoverable_fault_has_no_recovery_action():
    with inject_faults({0: Fault(None)}), pytest.raises(poptorch.UnrecoverableError) as caught:
        training()(X, Y)
    assert not hasattr(caught.value, "recovery_action")


def test_an_unknown_recovery_action_is_refused():
    with pytest.raises(ValueError, match="recovery_action must be one of"):
        Fault("REBOOT")


def test_a_failed_call_leaves_the_executor_attached():
    """Nothing is detached for the caller, and of a device that still answers everything can be had."""
    executor, whole = training(), training()
    for _ in range(3):
        executor(X, Y)
        whole(X, Y)
    with inject_faults({0: Fault()}), pytest.raises(poptorch.RecoverableError):
        executor(X, Y)
    assert executor.isCompiled() and executor.isAttachedToDevice()
    executor.detachFromDevice()
    assert torch.equal(executor.model.linear.weight, whole.model.linear.weight)
    assert torch.equal(executor(X, Y), whole(X, Y))


@pytest.mark.parametrize("what", ["detachFromDevice", "destroy"])
def test_a_device_that_answers_nothing_more_is_not_given_back_by_reads(what):
    """Both read first, and a read that fails leaves the IPUs taken and the model wrapped."""
    executor = training()
    model = executor.model
    executor(X, Y)
    with inject_faults({0: Fault(None, lasting=True)}), pytest.raises(poptorch.UnrecoverableError):
        executor(X, Y)
    for _ in range(2):
        with pytest.raises(poptorch.UnrecoverableError):
            getattr(executor, what)()
    assert executor.isAttachedToDevice() and type(model).__name__ == "PoptorchModel"
    with pytest.raises(RuntimeError, match="already been wrapped"):
        poptorch.trainingModel(model, optimizer=poptorch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1))


@pytest.mark.parametrize("unread", ["random state", "weights", "optimizer"])
def test_it_is_given_back_once_nothing_is_newer_there(unread):
    """Each of the three reads must have been made unnecessary."""
    executor = training()
    model, optimizer = executor.model, executor._life.state.optimizer._optimizer
    before = executor.model.linear.weight.detach().clone()
    executor(X, Y)
    with inject_faults({0: Fault(None, lasting=True)}), pytest.raises(poptorch.UnrecoverableError):
        executor(X, Y)

    def make_unnecessary(left_out):
        if left_out != "random state":
            with pytest.raises(poptorch.UnrecoverableError):
                executor.rng_state = [1]
        if left_out != "optimizer":
            optimizer.host_state_is_dirty = False
        if left_out != "weights":
            with pytest.raises(poptorch.UnrecoverableError):
                executor.copyWeightsToDevice()

    make_unnecessary(unread)
    with pytest.raises(poptorch.UnrecoverableError):
        executor.destroy()
    make_unnecessary(None)
    executor.destroy()
    assert type(model) is Model and torch.equal(model.linear.weight, before)
    poptorch.trainingModel(model, optimizer=poptorch.optim.SGD(model.parameters(), lr=0.1))(X, Y)


def test_calls_of_all_executors_count():
    first, second = poptorch.inferenceModel(nn.Linear(3, 2)), poptorch.inferenceModel(nn.Linear(3, 2))
    with inject_faults({1: Fault()}):
        first(X)
        with pytest.raises(poptorch.RecoverableError):
            second(X)


def test_nothing_fails_after_the_block_even_if_it_was_left_by_an_error():
    executor = training()
    with pytest.raises(ZeroDivisionError), inject_faults({0: Fault()}):
        raise ZeroDivisionError
    executor(X, Y)


def test_blocks_nest_each_with_a_count_of_its_own():
    executor = training()
    with inject_faults({1: Fault(message="outer")}):
        with inject_faults({0: Fault(message="inner")}):
            with pytest.raises(poptorch.Error, match="inner"):
                executor(X, Y)
        with pytest.raises(poptorch.Error, match="outer"):
            executor(X, Y)


def copies_of(work) -> int:
    """How many copies a piece of work makes: the first number that no fault hits any more."""
    for number in range(20):
        with inject_faults({}, copies={number: Fault()}):
            try:
                work()
            except poptorch.RecoverableError:
                continue
            return number
    raise AssertionError("there is no end of copies")


def test_copies_fail_by_their_own_numbers():
    """Attaching; weights, optimizer state and random state to the host; weights to the device; not the calls."""

    def all_of_them():
        executor = training()
        executor(X, Y)  # attaches
        executor.copyWeightsToHost()
        executor.copyWeightsToDevice()  # reads the optimizer's state first
        executor(X, Y)
        executor.rng_state  # noqa: B018
        executor.detachFromDevice()  # weights and optimizer state; the random state has been read
        executor.destroy()

    assert copies_of(all_of_them) == 7


def test_a_failed_copy_can_be_made_again():
    executor = training()
    before = executor.model.linear.weight.detach().clone()
    executor(X, Y)
    with inject_faults({}, copies={0: Fault()}), pytest.raises(poptorch.RecoverableError):
        executor.copyWeightsToHost()
    assert executor.isAttachedToDevice()
    executor.copyWeightsToHost()
    assert not torch.equal(executor.model.linear.weight, before)


def test_a_failed_attach_takes_no_ipus():
    executor = training()
    with inject_faults({}, copies={0: Fault()}), pytest.raises(poptorch.RecoverableError):
        executor.compile(X, Y)
    assert not executor.isCompiled()
    executor(X, Y)
