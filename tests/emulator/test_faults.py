"""Faults on demand: what a program sees when the hardware fails, and what is left afterwards."""

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


def test_the_device_is_lost_and_the_next_call_starts_from_the_hosts_weights():
    """Two steps were downloaded, a third was not: what follows is what two steps and then a new one give."""
    executor = training()
    executor(X, Y)
    executor(X, Y)
    weight, bias = executor.model.linear.weight.detach().clone(), executor.model.linear.bias.detach().clone()
    executor(X, Y)
    with inject_faults({0: Fault()}), pytest.raises(poptorch.RecoverableError):
        executor(X, Y)
    assert executor.isCompiled() and not executor.isAttachedToDevice()
    assert torch.equal(executor.model.linear.weight, weight)
    assert torch.allclose(executor(X, Y), nn.functional.mse_loss(X @ weight.t() + bias, Y))
    assert poptorch.counters(executor).compiles == 1
    assert poptorch.counters(executor).attaches == 2


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
        executor.detachFromDevice()  # random state, weights, optimizer state
        executor.destroy()

    assert copies_of(all_of_them) == 8


def test_a_failed_copy_loses_what_the_device_had():
    """The executor is detached; its next call starts from the host's weights."""
    executor = training()
    before = executor.model.linear.weight.detach().clone()
    executor(X, Y)
    with inject_faults({}, copies={0: Fault()}), pytest.raises(poptorch.RecoverableError):
        executor.copyWeightsToHost()
    assert not executor.isAttachedToDevice()
    assert torch.equal(executor.model.linear.weight, before)
    executor(X, Y)
    assert not torch.equal(executor.model.linear.weight, before)


def test_a_failed_attach_takes_no_ipus():
    executor = training()
    with inject_faults({}, copies={0: Fault()}), pytest.raises(poptorch.RecoverableError):
        executor.compile(X, Y)
    assert not executor.isCompiled()
    executor(X, Y)


def test_the_fault_hook_keeps_no_executor_alive():
    """Whoever keeps the optimizer does not keep the IPUs."""
    import gc
    import weakref

    executor = training()
    optimizer = executor._optimizer
    executor(X, Y)
    gone = weakref.ref(executor)
    del executor
    gc.collect()
    assert gone() is None
    optimizer.before_download()
