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
from ignite_ipu.selftest.bench import Bench, Pair, adam, agree, batches, expect, network, sgd
from ignite_ipu.selftest.promises import Skipped, needs

PAGE = "recovery.md"
_PREEMPTED = 75


def _run_anew(pair: Pair, data: Any) -> None:
    """Run on other data after a run that failed, which Ignite would take up again, and compare."""
    pair.trainer.state.max_epochs = None
    pair.check(data, state=True)


def _refused(call: Callable[[], Any], kind: Type[BaseException], *words: str) -> None:
    """See that something is refused by an error of this kind whose text has these words."""
    try:
        call()
    except kind as error:
        missing = [word for word in words if word not in str(error)]
        expect(not missing, f"the error does not say {', '.join(missing)}: {error}")
        return
    raise AssertionError(f"no {kind.__name__} was raised")


def busy_device(bench: Bench) -> None:
    """IPUs that another program holds are refused as busy; that program and its model go on."""
    if os.environ.get("POPTORCH_WAIT_FOR_IPU"):
        raise Skipped("POPTORCH_WAIT_FOR_IPU is set, so PopTorch waits for a busy device")
    if is_simulated(bench.options()):
        raise Skipped("an IPU model is never busy")
    data = batches()
    first, second = (bench.pair(options=bench.on_the_first()) for _ in range(2))
    first.run(data[:2])
    _refused(lambda: second.trainer.run(data), Exception)
    first.check(data[2:])
    first.trainer.ipu.close()
    _run_anew(second, data)


@needs(page="concepts.md")
def other_shape(bench: Bench) -> None:
    """Batches of another shape train by a program of their own; one shape too many is refused, and training goes on."""
    data, pair = batches(), bench.pair()
    pair.trainer.ipu.most_shapes = 2
    x, y = data[0]
    pair.run([data[0], (x[:4], y[:4]), data[1]])
    _refused(lambda: pair.trainer.run([(x[:2], y[:2])]), BatchError, "(2, ", "most_shapes")
    _run_anew(pair, data[2:])


@needs(page="quickstart.md")
def indivisible_batch(bench: Bench) -> None:
    """A batch that cannot be cut into the call's micro-batches is refused before anything is compiled."""
    trainer = bench.pair(device_iterations=3).trainer
    _refused(lambda: trainer.run(batches(1)), BatchError, "8", "3")


@needs(page="quickstart.md")
def too_little_data(bench: Bench) -> None:
    """Data that is smaller than one device call is refused."""
    trainer = bench.pair(device_iterations=4).trainer
    loader = DataLoader(TensorDataset(*batches(1)[0]), batch_size=4)
    _refused(lambda: trainer.run(loader), LoaderError, "8", "16")


def _set_and_taken_back(bench: Bench, optimizer: Any, name: str, value: float, kind: Any, *words: str) -> None:
    """See that a value is refused between two runs, and that training goes on with the old one."""
    data, pair = batches(), bench.pair(optimizer)
    pair.run(data[:2])
    before = pair.optimizer.param_groups[0][name]
    pair.set(**{name: value})
    _refused(lambda: pair.trainer.run(data[2:]), kind, name, *words)
    pair.set(**{name: before})
    _run_anew(pair, data[2:])


@needs(page="optimizers.md")
def changed_constant(bench: Bench) -> None:
    """A changed constant is refused by name; training goes on with the old value, and the state can be read."""
    _set_and_taken_back(bench, adam, "weight_decay", 0.1, ConstantAttributeError, "variable")


@needs(page="optimizers.md")
def impossible_value(bench: Bench) -> None:
    """A value that no update survives is refused by name, and training goes on."""
    _set_and_taken_back(bench, sgd, "lr", float("nan"), OptimizerError)


@needs(page="concepts.md")
def refused_loss(bench: Bench) -> None:
    """A loss from which no gradient reaches a weight is refused."""
    trainer = bench.pair(loss_fn=lambda y_pred, y: (y_pred.argmax(1) != y).float().mean()).trainer
    _refused(lambda: trainer.run(batches(1)), LossError, "argmax")


@needs(page="optimizers.md")
def foreign_parameter(bench: Bench) -> None:
    """A parameter that the optimizer does not hold is refused."""
    _refused(lambda: bench.pair(lambda model: sgd(model[0])), OptimizerError, "2.weight")


@needs(page="concepts.md")
def second_trainer(bench: Bench) -> None:
    """A second trainer over one model is refused."""
    model = bench.pair().model
    _refused(lambda: bench.trainer(model, sgd(model)), SessionError, "close()")


class _Selecting(nn.Module):
    """A layer whose output's shape depends on values, which no compiled program can have."""

    selects = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[x > 0] if self.selects else x


def failed_compile(bench: Bench) -> None:
    """A model that does not compile gives its IPUs back, and trains when it is mended."""
    layer = _Selecting()
    pair = bench.pair(model=lambda: network(lambda: layer), options=bench.on_the_first())
    _refused(lambda: pair.trainer.run(batches()), Exception)
    pair.trainer.ipu.close()
    layer.selects = False
    pair.trainer = bench.trainer(pair.model, pair.optimizer, options=bench.on_the_first())
    pair.check()


@needs(page="quickstart.md")
def failing_handler(bench: Bench) -> None:
    """Any error of a handler ends the run with the newest weights on the host and the IPUs given back."""
    data, pair = batches(), bench.pair(options=bench.on_the_first())

    def interrupt() -> None:
        raise KeyboardInterrupt

    pair.trainer.add_event_handler(Events.ITERATION_COMPLETED(once=2), interrupt)
    _refused(lambda: pair.trainer.run(data), KeyboardInterrupt)
    pair.train(data[:2])
    agree(pair.model(data[0][0]), pair.reference(data[0][0]), "outputs on the host")
    pair.compare()
    bench.pair(options=bench.on_the_first()).run(data)


def preemption(bench: Bench) -> None:
    """SIGTERM saves the run and exits with code 75; the same program goes on to the same weights."""
    if threading.current_thread() is not threading.main_thread():
        raise Skipped("signals reach the main thread only")

    def run(folder: str, terminate: bool = False) -> Any:
        pair = bench.pair()
        recovery = Recovery(bench.folder / folder, every=2, resume="auto")
        recovery.attach(pair.trainer)
        Preemption(recovery, grace=60).attach(pair.trainer)
        if terminate:
            third = Events.ITERATION_COMPLETED(once=3)
            pair.trainer.add_event_handler(third, lambda: os.kill(os.getpid(), signal.SIGTERM))
        pair.trainer.run(batches(6), max_epochs=1)
        pair.trainer.ipu.close()
        return pair.model

    _refused(lambda: run("parted", terminate=True), SystemExit, str(_PREEMPTED))
    agree(run("parted"), run("whole"), "weights after going on", 0, 0)


def _recovered(bench: Bench, calls: Any, copies: Any = None) -> None:
    """Train with injected faults under `Recovery` and without any; both end with the same bits."""
    models = []
    for failing in (True, False):
        pair = bench.pair(model=lambda: network(lambda: nn.Dropout(0.2)), seed=5)
        Recovery(bench.folder / str(failing), every=2, backoff=0.0).attach(pair.trainer)
        with bench.poptorch.inject_faults(calls if failing else {}, copies=copies if failing else None):
            pair.trainer.run(batches(6))
        expect(not failing or pair.trainer.state.recovery.faults > 0, "no fault was met")
        models.append(pair.model)
    agree(models[0], models[1], "weights", 0, 0)


@needs(needs_emulator=True)
def recovered_call(bench: Bench) -> None:
    """With Recovery, a device fault does not show in the weights."""
    _recovered(bench, {3: bench.poptorch.Fault("IPU_RESET")})


@needs(needs_emulator=True)
def recovered_copy(bench: Bench) -> None:
    """With Recovery, a fault while state is copied does not show in the weights."""
    _recovered(bench, {}, {4: bench.poptorch.Fault("IPU_RESET")})


@needs(needs_emulator=True)
def dead_device(bench: Bench) -> None:
    """A device that answers nothing more is given back, and another trainer can be made."""
    poptorch, pair = bench.poptorch, bench.pair(options=bench.on_the_first())
    dead = {number: poptorch.Fault(recovery_action=None) for number in range(1000)}
    pair.trainer.run(batches(2))
    with poptorch.inject_faults(dead, copies=dead):
        _refused(lambda: pair.trainer.run(batches()), Exception)
    expect(type(pair.model[0].weight) is nn.Parameter, "the model is still PopTorch's")
    pair.trainer.ipu.close()
    bench.trainer(pair.model, sgd(pair.model), options=bench.on_the_first()).run(batches())
