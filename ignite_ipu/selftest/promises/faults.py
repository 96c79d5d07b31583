"""Faults are said by name, and neither training nor IPUs are lost by them."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any, Callable, Type

import torch
from ignite.engine import Events
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ignite_ipu import BatchError, ConstantAttributeError, LoaderError, LossError, OptimizerError, SessionError
from ignite_ipu.handlers import Preemption, Recovery
from ignite_ipu.program.options import is_simulated
from ignite_ipu.selftest.bench import Bench
from ignite_ipu.selftest.promise import Promises, Skipped
from ignite_ipu.selftest.reference import Pair, adam, agree, batches, expect, network, same_bits, sgd, train

PROMISES = Promises("faults", "guarantees.md")
_PREEMPTED = 75


def _run_anew(pair: Pair, data: Any) -> None:
    """Run on other data after a run that failed, which Ignite would take up again."""
    pair.trainer.state.max_epochs = None
    pair.run(data)


def _refused(call: Callable[[], Any], kind: Type[BaseException], *words: str) -> None:
    """See that something is refused by an error of this kind whose text has these words.

    Raises:
        AssertionError: It is not.
    """
    try:
        call()
    except kind as error:
        missing = [word for word in words if word not in str(error)]
        expect(not missing, f"the error does not say {', '.join(missing)}: {error}")
        return
    raise AssertionError(f"no {kind.__name__} was raised")


@PROMISES.promise()
def busy_device(bench: Bench) -> None:
    """IPUs that another program holds are refused as busy; that program and its model go on."""
    if os.environ.get("POPTORCH_WAIT_FOR_IPU"):
        raise Skipped("POPTORCH_WAIT_FOR_IPU is set, so PopTorch waits for a busy device")
    if is_simulated(bench.options()):
        raise Skipped("an IPU model is never busy")
    data = batches(4)
    first, second = (bench.pair(options=bench.options().useIpuId(0)) for _ in range(2))
    first.run(data[:2])
    _refused(lambda: second.trainer.run(data), Exception)
    first.run(data[2:])
    first.compare()
    first.trainer.ipu.close()
    _run_anew(second, data)
    second.compare()


@PROMISES.promise(page="concepts.md")
def other_shape(bench: Bench) -> None:
    """Batches of another shape train by a program of their own; one shape too many is refused, and training goes on."""
    data = batches(4)
    pair = bench.pair()
    pair.trainer.ipu.most_shapes = 2
    x, y = data[0]
    pair.run([data[0], (x[:4], y[:4]), data[1]])
    _refused(lambda: pair.trainer.run([(x[:2], y[:2])]), BatchError, "(2, ", "most_shapes")
    _run_anew(pair, data[2:])
    pair.compare()


@PROMISES.promise(page="quickstart.md")
def indivisible_batch(bench: Bench) -> None:
    """A batch that cannot be cut into the call's micro-batches is refused before anything is compiled."""
    trainer = bench.pair(device_iterations=3).trainer
    _refused(lambda: trainer.run(batches(1)), BatchError, "8", "3")


@PROMISES.promise(page="quickstart.md")
def too_little_data(bench: Bench) -> None:
    """Data that is smaller than one device call is refused."""
    trainer = bench.pair(device_iterations=4).trainer
    loader = DataLoader(TensorDataset(*batches(1)[0]), batch_size=4)
    _refused(lambda: trainer.run(loader), LoaderError, "8", "16")


@PROMISES.promise(page="optimizers.md")
def changed_constant(bench: Bench) -> None:
    """A changed constant is refused by name; training goes on with the old value, and the state can be read."""
    data = batches(4)
    pair = bench.pair(adam)
    pair.run(data[:2])
    pair.set(weight_decay=0.1)
    _refused(lambda: pair.trainer.run(data[2:]), ConstantAttributeError, "weight_decay", "variable")
    pair.set(weight_decay=0)
    _run_anew(pair, data[2:])
    pair.compare(state=True)


@PROMISES.promise(page="optimizers.md")
def impossible_value(bench: Bench) -> None:
    """A value that no update survives is refused by name, and training goes on."""
    data = batches(4)
    pair = bench.pair()
    pair.run(data[:2])
    pair.set(lr=float("nan"))
    _refused(lambda: pair.trainer.run(data[2:]), OptimizerError, "lr")
    pair.set(lr=0.3)
    _run_anew(pair, data[2:])
    pair.compare(state=True)


@PROMISES.promise(page="concepts.md")
def refused_loss(bench: Bench) -> None:
    """A loss from which no gradient reaches a weight is refused."""
    model = network()

    def errors(y_pred: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (y_pred.argmax(1) != y).float().mean()

    _refused(lambda: bench.trainer(model, sgd(model), errors).run(batches(1)), LossError, "argmax")


@PROMISES.promise(page="optimizers.md")
def foreign_parameter(bench: Bench) -> None:
    """A parameter that the optimizer does not hold is refused."""
    model = network()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    _refused(lambda: bench.trainer(model, optimizer), OptimizerError, "2.weight")


@PROMISES.promise(page="concepts.md")
def second_trainer(bench: Bench) -> None:
    """A second trainer over one model is refused."""
    model = bench.pair().model
    _refused(lambda: bench.trainer(model, sgd(model)), SessionError, "close()")


class _Selecting(nn.Module):
    """A layer whose output's shape depends on values, which no compiled program can have."""

    def __init__(self) -> None:
        super().__init__()
        self.selects = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[x > 0] if self.selects else x


@PROMISES.promise()
def failed_compile(bench: Bench) -> None:
    """A model that does not compile gives its IPUs back, and trains when it is mended."""
    data = batches(2)
    layer = _Selecting()
    model, reference = network(lambda: layer), network()
    trainer = bench.trainer(model, sgd(model), options=bench.options().useIpuId(0))
    _refused(lambda: trainer.run(data), Exception)
    trainer.ipu.close()
    layer.selects = False
    bench.trainer(model, sgd(model), options=bench.options().useIpuId(0)).run(data)
    train(reference, sgd(reference), data)
    agree(list(model.state_dict().values()), list(reference.state_dict().values()), "weights")


@PROMISES.promise(page="quickstart.md")
def failing_handler(bench: Bench) -> None:
    """Whatever a handler raises ends the run with the newest weights on the host and the IPUs given back."""
    data = batches(4)
    pair = bench.pair(options=bench.options().useIpuId(0))

    def interrupt() -> None:
        raise KeyboardInterrupt

    pair.trainer.add_event_handler(Events.ITERATION_COMPLETED(once=2), interrupt)
    _refused(lambda: pair.trainer.run(data), KeyboardInterrupt)
    pair.train(data[:2])
    agree(pair.model(data[0][0]), pair.reference(data[0][0]), "outputs on the host")
    pair.compare()
    bench.pair(options=bench.options().useIpuId(0)).run(data)


@PROMISES.promise()
def preemption(bench: Bench) -> None:
    """SIGTERM saves the run and exits with code 75; the same program goes on to the same weights."""
    if threading.current_thread() is not threading.main_thread():
        raise Skipped("signals reach the main thread only")
    data = batches(6)

    def run(folder: str, terminate: bool = False) -> Any:
        model = network()
        trainer = bench.trainer(model, sgd(model))
        recovery = Recovery(bench.folder / folder, every=2, resume="auto")
        recovery.attach(trainer)
        Preemption(recovery, grace=60).attach(trainer)
        if terminate:
            trainer.add_event_handler(Events.ITERATION_COMPLETED(once=3), lambda: os.kill(os.getpid(), signal.SIGTERM))
        trainer.run(data, max_epochs=1)
        trainer.ipu.close()
        return model

    try:
        run("parted", terminate=True)
    except SystemExit as error:
        expect(error.code == _PREEMPTED, f"exit code {error.code}")
    else:
        raise AssertionError("SIGTERM did not end the run")
    same_bits(run("parted"), run("whole"), "weights after going on")


def _recovered(bench: Bench, calls: Any, copies: Any = None) -> None:
    """Train with injected faults under `Recovery` and without any; both end with the same bits."""
    poptorch = bench.poptorch
    models = [network(lambda: nn.Dropout(0.2)) for _ in range(2)]
    for model, failing in zip(models, (True, False)):
        trainer = bench.trainer(model, sgd(model), seed=5)
        Recovery(bench.folder / str(failing), every=2, backoff=0.0).attach(trainer)
        with poptorch.inject_faults(calls if failing else {}, copies=copies if failing else None):
            trainer.run(batches(6))
        if failing:
            expect(trainer.state.recovery.faults > 0, "no fault was met")
        trainer.ipu.close()
    same_bits(models[0], models[1], "weights")


@PROMISES.promise(needs_emulator=True)
def recovered_call(bench: Bench) -> None:
    """With Recovery, a device fault does not show in the weights."""
    _recovered(bench, {3: bench.poptorch.Fault("IPU_RESET")})


@PROMISES.promise(needs_emulator=True)
def recovered_copy(bench: Bench) -> None:
    """With Recovery, a fault while state is copied does not show in the weights."""
    _recovered(bench, {}, {4: bench.poptorch.Fault("IPU_RESET")})


@PROMISES.promise(needs_emulator=True)
def dead_device(bench: Bench) -> None:
    """A device that answers nothing more is given back, and another trainer can be made."""
    poptorch = bench.poptorch
    data = batches(4)
    model = network()
    trainer = bench.trainer(model, sgd(model), options=bench.options().useIpuId(0))
    dead = {number: poptorch.Fault(recovery_action=None) for number in range(1000)}
    trainer.run(data[:2])
    with poptorch.inject_faults(dead, copies=dead):
        _refused(lambda: trainer.run(data[2:]), Exception)
    expect(type(model[0].weight) is nn.Parameter, "the model is still PopTorch's")
    trainer.ipu.close()
    bench.trainer(model, sgd(model), options=bench.options().useIpuId(0)).run(data)
