"""Programs compiled ahead of a run: nothing trains, and the run trains as one that did not compile ahead."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import ignite_ipu.emulator as poptorch
from ignite_ipu import (
    BatchError,
    LoaderError,
    SessionError,
    create_ipu_averages_evaluator,
    create_ipu_evaluator,
    create_ipu_trainer,
)
from ignite_ipu.checkpoints.random_states import read_random_states
from tests.supervised import assert_same_weights, task

CROSS_ENTROPY = nn.CrossEntropyLoss()
FACTORS = {"device_iterations": 2, "gradient_accumulation_steps": 2, "seed": 7}


def normed(width=8):
    """Return a network with statistics and with random numbers of the device, always the same."""
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return nn.Sequential(nn.Linear(6, width), nn.BatchNorm1d(width), nn.Dropout(0.3), nn.Linear(width, 3))


def trained_by(model, momentum=0.9, **settings):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum)
    return optimizer, create_ipu_trainer(model, optimizer, CROSS_ENTROPY, **{**FACTORS, **settings})


def shuffled():
    return DataLoader(task(), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(3))


def global_batch(size=16):
    x, y = task()[:size]
    return x, y


def compiles():
    return poptorch.counters().compiles


@pytest.mark.parametrize("ahead", [global_batch, shuffled], ids=["batch", "loader"])
def test_run_after_compile_is_the_run_without(ahead):
    """Compiling ahead leaves everything as it was; the run compiles nothing more, and ends with the same values."""
    results = []
    for compile_ahead in (True, False):
        torch.manual_seed(5)
        model, loader = normed(), shuffled()
        optimizer, trainer = trained_by(model)
        evaluator = create_ipu_evaluator(model)
        if compile_ahead:
            weights, states = copy.deepcopy(model.state_dict()), read_random_states(loader.generator)
            trainer.compile(loader if ahead is shuffled else ahead())
            evaluator.compile(loader if ahead is shuffled else ahead())
            assert not optimizer.state_dict()["state"]
            torch.testing.assert_close(model.state_dict(), weights, rtol=0, atol=0)
            assert repr(read_random_states(loader.generator)) == repr(states)
            assert poptorch.counters(trainer.ipu.training.executor).device_calls == 0
        before = compiles()
        trainer.run(loader, max_epochs=2)
        evaluator.run(loader)
        assert compiles() - before == (0 if compile_ahead else 2)
        results.append((model.state_dict(), optimizer.state_dict(), evaluator.state.output, trainer.state.output))
        trainer.ipu.close()
    torch.testing.assert_close(*results, rtol=0, atol=0)


def test_averages_and_smaller_calls():
    """An evaluator of averages, and the calls of `drop_last=False`, are compiled ahead, too."""
    data = task(20)
    model = nn.Linear(6, 3)
    _, trainer = trained_by(model, drop_last=False)
    evaluator = create_ipu_averages_evaluator(model, {"right": lambda y_pred, y: (y_pred.argmax(1) == y).float()})
    trainer.compile(data[:16])
    trainer.compile(data[16:])
    evaluator.compile(data[:16])
    before = compiles()
    trainer.run(DataLoader(data, batch_size=4))
    evaluator.run(DataLoader(data, batch_size=4))
    assert compiles() == before


def test_batches_are_checked():
    """Batches that a run would refuse are refused, and the trainer can still be compiled for the right batch."""
    _, trainer = trained_by(normed())
    with pytest.raises(BatchError, match=r"x has shape \(6, 6\); its 6 rows do not divide into the 4 micro-batches"):
        trainer.compile(global_batch(6))
    with pytest.raises(LoaderError, match="fewer than one device call"):
        trainer.compile(DataLoader(task(8), batch_size=4))
    trainer.compile(global_batch())
    assert trainer.ipu.training.geometry.global_batch_size == 16


def test_executable_of_an_offline_target(tmp_path):
    """A program compiled without IPUs, beside a taken machine, is loaded by another trainer, which trains as ever."""
    path = tmp_path / "training.poptorch"
    offline = poptorch.Options().useOfflineIpuTarget()
    before = poptorch.counters()
    trained_by(normed(), options=offline)[1].compile_and_export(path, global_batch())
    assert (poptorch.counters() - before).attaches == 0
    models = []
    for load in (True, False):
        model = normed()
        _, trainer = trained_by(model)
        if load:
            trainer.load_executable(path)
        trainer.run(DataLoader(task(), batch_size=4), max_epochs=2)
        assert trainer.ipu.training.executor is not None
        models.append(model)
        trainer.ipu.release()
    assert_same_weights(*models, rtol=0, atol=0)


def test_evaluators_executable(tmp_path):
    """An evaluator's executable is loaded with other weights, and predicts by them."""
    path, x = tmp_path / "evaluation.poptorch", global_batch()[0]
    create_ipu_evaluator(normed()).compile_and_export(path, global_batch())
    model = normed()
    with torch.no_grad():
        model[0].weight.mul_(-2)
    evaluator = create_ipu_evaluator(model)
    evaluator.load_executable(path)
    evaluator.run(DataLoader(task(16), batch_size=16))
    torch.testing.assert_close(evaluator.state.output[0], model.eval()(x).detach(), rtol=1e-5, atol=1e-6)


class Negated(nn.Linear):
    """Another forward with the same weights."""

    def forward(self, x):
        return -super().forward(x)


@pytest.mark.parametrize(
    ("made", "settings", "rows", "message"),
    [
        (lambda: nn.Linear(6, 3), {}, 32, r"x is a torch.float32 tensor of shape \(32, 6\) and was .* \(16, 6\)"),
        (lambda: nn.Linear(6, 3), {"momentum": 0.0}, 16, r"its momentum is \[0.0\] and was not there"),
        (lambda: nn.Linear(6, 3), {"device_iterations": 1}, 16, "option device_iterations is 1 and was 2"),
        (lambda: nn.Linear(6, 3, bias=False), {}, 16, "model.bias is not there and was torch.float32 of shape"),
        (lambda: Negated(6, 3), {}, 16, "forward recorded other operators|forward calls other operators"),
    ],
    ids=["batch", "optimizer", "options", "weights", "forward"],
)
def test_executables_of_something_else(tmp_path, made, settings, rows, message):
    """An executable is refused that was compiled from something else, and nothing is compiled in its place."""
    path = tmp_path / "training.poptorch"
    trained_by(nn.Linear(6, 3))[1].compile_and_export(path, global_batch())
    _, trainer = trained_by(made(), **settings)
    trainer.load_executable(path)
    for _ in range(2):
        with pytest.raises(SessionError, match=message):
            trainer.compile(global_batch(rows))
    assert not trainer.ipu.training.ready


def test_files_that_are_no_executables(tmp_path):
    """Errors for missing, damaged or late files name the file."""
    path = tmp_path / "training.poptorch"
    _, trainer = trained_by(normed())
    with pytest.raises(SessionError, match="is no executable"):
        trainer.load_executable(path)
    trainer.compile_and_export(path, global_batch())
    with pytest.raises(SessionError, match="comes too late"):
        trainer.load_executable(path)
    beside = path.with_name("training.poptorch.json")
    assert json.loads(beside.read_text())["the kind"] == "training"
    path.write_bytes(path.read_bytes()[:-1])
    _, trainer = trained_by(normed())
    trainer.load_executable(path)
    with pytest.raises(SessionError, match="PopTorch says: "):
        trainer.compile(global_batch())
    beside.write_text("{}")
    with pytest.raises(SessionError, match="does not describe the source of the executable"):
        trainer.load_executable(path)
