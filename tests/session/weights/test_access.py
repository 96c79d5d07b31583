"""Access to tensors of a model in training: a download for values alone, and ordinary tensors as results."""

from __future__ import annotations

import copy
import copyreg
import io
import pickle
import pickletools
import zipfile
from typing import Any, Dict, Set

import pytest
import torch
from ignite.engine import Engine, Events, create_supervised_trainer
from ignite.handlers import LRScheduler, TerminateOnNan
from ignite.metrics import RunningAverage
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import ignite_ipu.emulator as poptorch
from ignite_ipu import create_ipu_trainer, ipu_step
from ignite_ipu.handlers import IPUStats, RecompileWatch
from ignite_ipu.program.tensors.raw import plain
from ignite_ipu.session.hooks import SessionHooks
from ignite_ipu.session.weights.access import AccessTracker
from ignite_ipu.session.weights.tracker import Weights
from tests.supervised import task


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


def loader() -> DataLoader[Any]:
    return DataLoader(task(), batch_size=16)


def by_factory(model: nn.Module) -> Engine:
    return create_ipu_trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss())


def by_captured_step(model: nn.Module) -> Engine:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(engine: Engine, batch: Any) -> float:
        model.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        return loss.item()

    return Engine(ipu_step(step))


class Accelerated:
    """A loop of accelerate's, with an engine's method."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def run(self, data: DataLoader[Any], max_epochs: int) -> None:
        pytest.importorskip("accelerate")
        from ignite_ipu import IPUAccelerator, IPUConfig

        # The first updates keep their previous weights if updates on the host may follow.
        accelerator = IPUAccelerator(config=IPUConfig(update="device"))
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        model, optimizer, data = accelerator.prepare(self.model, optimizer, data)
        for _ in range(max_epochs):
            for x, y in data:
                optimizer.zero_grad()
                accelerator.backward(F.cross_entropy(model(x), y))
                optimizer.step()


WAYS = [by_factory, by_captured_step, Accelerated]


def globals_of(file: io.BytesIO) -> Set[str]:
    """Return the modules that a file of torch.save names."""
    with zipfile.ZipFile(file) as archive:
        data = archive.read(next(name for name in archive.namelist() if name.endswith("data.pkl")))
    return {str(value).split(".")[0].split()[0] for code, value, _ in pickletools.genops(data) if code.name == "GLOBAL"}


@pytest.mark.parametrize("way", WAYS)
def test_files_of_a_model_in_training_need_no_PopTorch(way):
    """A state dictionary is read as weights only, a whole model with its classes; both hold the newest."""
    model = network()
    way(model).run(loader(), max_epochs=1)
    assert {type(value) for value in model.state_dict().values()} == {torch.Tensor}
    state, whole = io.BytesIO(), io.BytesIO()
    torch.save(model.state_dict(), state)
    torch.save(model, whole)
    assert not (globals_of(state) | globals_of(whole)) & {"poptorch", "ignite_ipu"}
    newest = {name: value.tolist() for name, value in model.state_dict().items()}
    for file, found in ((state, dict), (whole, lambda loaded: loaded.state_dict())):
        file.seek(0)
        loaded: Dict[str, torch.Tensor] = found(torch.load(file, weights_only=file is state))
        assert {name: value.tolist() for name, value in loaded.items()} == newest


def test_what_is_computed_copied_or_pickled_is_ordinary():
    model = network()
    trainer = by_factory(model)
    trainer.run(loader(), max_epochs=1)
    for tensor in (model[0].weight, model[1].running_mean):
        for compute in (torch.clone, torch.Tensor.detach, lambda tensor: tensor + 1, torch.Tensor.numpy, torch.stack):
            if compute is torch.Tensor.numpy:
                tensor = tensor.detach()
            found = compute([tensor]) if compute is torch.stack else compute(tensor)
            assert type(found).__module__ in ("torch", "numpy")
    for tensor, kind in ((model[0].weight, nn.Parameter), (model[1].running_mean, torch.Tensor)):
        tensor.marked = True
        for other in (copy.copy(tensor), copy.deepcopy(tensor), pickle.loads(pickle.dumps(tensor))):
            assert type(other) is kind and torch.equal(other, tensor)
            assert other.requires_grad == tensor.requires_grad
        assert pickle.loads(pickle.dumps(tensor)).marked
    trainer.ipu.close()


class Seen:
    """Receives the notice of a first access."""

    def note(self, brings):
        pass


def test_a_reducer_that_was_registered_for_a_class_is_replaced():
    """`copyreg`'s are asked before a class's own methods."""

    class Wrapped(nn.Parameter):
        pass

    parameter = nn.Parameter(torch.ones(2))
    parameter.__class__ = Wrapped
    copyreg.pickle(Wrapped, lambda tensor: (dict, ()))
    try:
        seen = Seen()
        accesses = AccessTracker([parameter], seen.note, SessionHooks())
        assert type(pickle.loads(pickle.dumps(parameter))) is nn.Parameter and accesses.any
    finally:
        del copyreg.dispatch_table[Wrapped]


def test_a_value_is_not_the_one_before_a_write_that_came_first():
    """The detached tensor comes after the write, which the tracker has not been told of."""
    model = network()
    weights = Weights(model)
    weights.detector.watch_evaluation()
    for number, parameter in enumerate(list(model.parameters())[:2]):
        before = plain(parameter).clone()
        if number == 1:
            _ = parameter.detach()
        plain(parameter).mul_(2)
        _ = parameter.detach()
        ((written, kept),) = weights.detector.find()
        assert written is parameter
        assert kept is None if number == 0 else torch.equal(kept, before)


QUESTIONS = {
    "its class": lambda tensor: isinstance(tensor, dict),
    "whether it is a parameter": lambda tensor: isinstance(tensor, nn.Parameter),
    "its shape": lambda tensor: (tensor.shape, tensor.size(0), tensor.dim(), tensor.numel(), len(tensor)),
    "its type": lambda tensor: (tensor.dtype, tensor.device, tensor.is_floating_point()),
    "whether it is trained": lambda tensor: (tensor.requires_grad, tensor.is_leaf, tensor.grad is None),
    "an attribute of somebody's": lambda tensor: getattr(tensor, "no_weight_decay", None),
    "its place in a dictionary": lambda tensor: {tensor: 1}[tensor],
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_what_a_tensor_is_can_be_asked_without_a_download(question):
    model = network()
    trainer = create_ipu_trainer(
        model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(), config={"weight_sync": "on demand"}
    )
    tensors = [*model.parameters(), *model.buffers()][:-1]  # len() of a scalar is an error
    expected = [QUESTIONS[question](tensor) for tensor in [*network().parameters(), *network().buffers()][:-1]]
    trainer.run(loader(), max_epochs=1)
    before = poptorch.counters()
    assert [QUESTIONS[question](tensor) for tensor in tensors] == expected
    assert (poptorch.counters() - before).weight_downloads == 0
    _ = tensors[0] + 0
    assert (poptorch.counters() - before).weight_downloads == 1
    trainer.ipu.close()


def test_a_write_behind_a_question_is_not_lost() -> None:
    """A read of properties is no download; a write by a tensor from before the update reaches the device."""

    def trained(create: Any) -> nn.Module:
        model = network()
        trainer = create(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss())
        views = [model[0].weight.detach()]

        def ask_write_and_read(engine: Engine) -> None:
            assert model[0].weight.shape == (8, 6) and model[0].weight.requires_grad_() is not None
            views[0].mul_(2)
            model[0].weight.sum()

        trainer.add_event_handler(Events.ITERATION_COMPLETED(once=2), ask_write_and_read)
        trainer.run(loader(), max_epochs=1)
        return model

    expected, found = trained(create_supervised_trainer), trained(create_ipu_trainer)
    torch.testing.assert_close(dict(found.state_dict()), dict(expected.state_dict()))


def test_steps_with_handlers_and_metrics_download_nothing():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss(), config={"weight_sync": "on demand"})
    trainer.add_event_handler(
        Events.ITERATION_STARTED, LRScheduler(torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9))
    )
    trainer.add_event_handler(Events.ITERATION_COMPLETED, TerminateOnNan())
    RunningAverage(output_transform=lambda output: output).attach(trainer, "loss")
    for handler in (IPUStats(), RecompileWatch()):
        handler.attach(trainer)
    trainer.add_event_handler(
        Events.ITERATION_COMPLETED,
        lambda: [isinstance(p, nn.Linear) or (p.grad, p.shape, p.numel()) for p in model.parameters()],
    )
    downloads = []
    trainer.add_event_handler(
        Events.ITERATION_COMPLETED, lambda: downloads.append(poptorch.counters().weight_downloads)
    )
    trainer.run(loader(), max_epochs=2)
    assert len(downloads) == 8 and len(set(downloads)) == 1
    trainer.ipu.close()


@pytest.mark.parametrize("way", WAYS[1:])
def test_steps_of_captured_loops_download_nothing(way):
    """Four iterations and forty cost as many downloads."""
    counts = []
    for epochs in (1, 10):
        before = poptorch.counters()
        way(network()).run(loader(), max_epochs=epochs)
        counts.append((poptorch.counters() - before).weight_downloads)
    assert counts[0] == counts[1] <= 1
