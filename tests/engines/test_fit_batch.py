"""`fit_batch`: the largest micro-batch that fits, and training with it equals training as before."""

from __future__ import annotations

import copy

import pytest
import torch
from ignite.engine import Events
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import ignite_ipu.emulator as poptorch
from ignite_ipu import IPUAccelerator, LossError, create_ipu_trainer, fit_batch
from ignite_ipu.errors import IPUOutOfMemoryError
from tests.accelerate_state import forget
from tests.supervised import assert_same_weights, network, task, train_natively

CROSS_ENTROPY = nn.CrossEntropyLoss()


class Limited(nn.Module):
    """A network whose program fits up to so many samples in a micro-batch, as if the device were full then."""

    def __init__(self, most):
        super().__init__()
        self.inner, self.most = network(), most

    def forward(self, x):
        if poptorch.isRunningOnIpu() and len(x) > self.most:
            raise RuntimeError(f"Out of memory: {len(x)} rows on tile 4")
        return self.inner(x)


def trained_by(model, momentum=0.9, loss_fn=CROSS_ENTROPY, **settings):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum)
    return optimizer, create_ipu_trainer(model, optimizer, loss_fn, **settings)


@pytest.mark.parametrize(
    ("most", "found", "tried"),
    [(1, 1, [4, 1, 2]), (3, 2, [4, 1, 2]), (4, 4, [4, 8]), (8, 8, [4, 8, 16]), (99, 16, [4, 8, 16])],
    ids=str,
)
def test_training_goes_on_as_it_was(most, found, tried):
    """Whatever is found, in the middle of training, updates before and after are those of plain PyTorch."""
    model, reference, loader = Limited(99), network(), DataLoader(task(), batch_size=4)
    optimizer, trainer = trained_by(model, gradient_accumulation_steps=4, device_iterations=2)
    losses = []
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: losses.append(trainer.state.output))
    native = torch.optim.SGD(reference.parameters(), lr=0.05, momentum=0.9)
    trainer.run(loader)
    train_natively(reference, native, loader, accumulation=4)
    model.most = most
    before = copy.deepcopy(model.state_dict())
    fitted = fit_batch(trainer, loader)
    assert (fitted.micro_batch_size, fitted.gradient_accumulation_steps) == (found, 16 // found)
    assert [size for size, _ in fitted.tried] == tried
    assert f"Micro-batches of {found} samples fit" in str(fitted)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    trainer.run(loader, max_epochs=3)
    for _ in range(2):
        train_natively(reference, native, loader, accumulation=4)
    assert_same_weights(model.inner, reference)
    for number, parameter in enumerate(model.parameters()):
        expected = native.state_dict()["state"][number]["momentum_buffer"]
        torch.testing.assert_close(optimizer.state[parameter]["momentum_buffer"], expected, rtol=1e-4, atol=1e-6)
    assert trainer.ipu.training.geometry.micro_batch_size == found
    assert f"{found} (micro-batch) x {16 // found} (gradientAccumulation)" in trainer.ipu.data
    assert len(losses) == 6


def test_nothing_fits():
    """The error lists the tried sizes; the trainer is as it was, and trains when there is room again."""
    model, reference, loader = Limited(0), network(), DataLoader(task(), batch_size=4)
    _, trainer = trained_by(model, momentum=0.0, gradient_accumulation_steps=2)
    with pytest.raises(IPUOutOfMemoryError, match=r"No micro-batch fits the device: 4 \(does not fit\), 1 \(does not"):
        fit_batch(trainer, loader)
    model.most = 4
    trainer.run(loader)
    train_natively(reference, torch.optim.SGD(reference.parameters(), lr=0.05), loader, accumulation=2)
    assert_same_weights(model.inner, reference)
    assert trainer.ipu.training.geometry.micro_batch_size == 4


def test_other_updates_are_refused():
    """A sum that is averaged over micro-batches is another update with another number of them."""
    _, trainer = trained_by(network(), loss_fn=nn.CrossEntropyLoss(reduction="sum"), gradient_accumulation_steps=2)
    with pytest.raises(LossError, match="The loss is a sum over samples, and an update is the mean"):
        fit_batch(trainer, DataLoader(task(), batch_size=4))


def test_pipelines_need_micro_batches():
    """Too few micro-batches to fill a pipeline do not fit, either."""
    _, trainer = trained_by(network(), pipeline=["0", "2"], gradient_accumulation_steps=4)
    fitted = fit_batch(trainer, DataLoader(task(), batch_size=4))
    reasons = dict(fitted.tried)
    assert fitted.gradient_accumulation_steps >= 3 and reasons[4] is None
    assert "pipeline" in reasons[8].lower() or "accumul" in reasons[8].lower()


@pytest.mark.parametrize(
    ("pipeline", "memory", "most"), [([0], 2000, 4), (["0", "2"], 1600, 2), ("auto", 900_000_000, 16)], ids=str
)
def test_estimated_memory_limits_them(pipeline, memory, most):
    """Each size is planned or estimated anew, and the pipeline that fits trains as eager PyTorch does."""
    model, reference, loader = network(), network(), DataLoader(task(), batch_size=2)
    config = {"ipus": 2, "memory_per_ipu": memory}
    _, trainer = trained_by(model, gradient_accumulation_steps=8, pipeline=pipeline, config=config)
    fitted = fit_batch(trainer, loader)
    assert fitted.micro_batch_size == most
    assert "IPU has" in dict(fitted.tried).get(2 * most, "IPU has")
    trainer.run(loader)
    train_natively(reference, torch.optim.SGD(reference.parameters(), lr=0.05, momentum=0.9), loader, accumulation=8)
    assert_same_weights(model, reference)
    assert trainer.ipu.training.placing.plan.fullest <= 1


def test_errors_of_another_kind_end_the_search():
    """Errors other than a lack of memory are raised, and the trainer is as it was."""
    model = Limited(99)
    _, trainer = trained_by(model, gradient_accumulation_steps=2)
    model.most = "no number"
    with pytest.raises(TypeError, match="not supported between"):
        fit_batch(trainer, DataLoader(task(), batch_size=4))
    model.most = 99
    trainer.run(DataLoader(task(), batch_size=4))
    assert trainer.ipu.training.geometry.micro_batch_size == 4


def test_captured_loops():
    """A function with a loop of accelerate's is called until its step fits, and trains as in eager PyTorch."""
    reference, calls = network(), []
    forget()

    def train(micro_batch_size, gradient_accumulation_steps):
        calls.append((micro_batch_size, gradient_accumulation_steps))
        accelerator = IPUAccelerator(gradient_accumulation_steps=gradient_accumulation_steps)
        model = Limited(4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        loader = DataLoader(task(), batch_size=micro_batch_size)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        for x, y in loader:
            with accelerator.accumulate(model):
                accelerator.backward(F.cross_entropy(model(x), y))
                optimizer.step()
                optimizer.zero_grad()
        return model

    fitted = fit_batch(train, 16)
    assert calls == [(16, 1), (8, 2), (4, 4)]
    assert (fitted.micro_batch_size, fitted.gradient_accumulation_steps) == (4, 4)
    train_natively(reference, torch.optim.SGD(reference.parameters(), lr=0.05), DataLoader(task(), batch_size=16))
    assert_same_weights(fitted.result.inner, reference)
    with pytest.raises(IPUOutOfMemoryError, match=r"No micro-batch fits the device: 2 \(does not fit\), 1"):
        fit_batch(lambda size, steps: (_ for _ in ()).throw(IPUOutOfMemoryError("full.")), 2)


def searched(most, cache, hidden=8, remember=True, **settings):
    """Return the result of a search by a new trainer, whose program fits up to `most` samples."""
    torch.manual_seed(0)
    model = Limited(most)
    if hidden != 8:
        model.inner = nn.Sequential(nn.Linear(6, hidden), nn.Tanh(), nn.Linear(hidden, 3))
    options = poptorch.Options()
    options.enableExecutableCaching(None if cache is None else str(cache))
    _, trainer = trained_by(model, gradient_accumulation_steps=4, options=options, **settings)
    fitted = fit_batch(trainer, DataLoader(task(), batch_size=4), remember=remember)
    trainer.run(DataLoader(task(), batch_size=4), max_epochs=1)
    assert trainer.ipu.training.geometry.micro_batch_size == fitted.micro_batch_size
    trainer.ipu.close()
    return [size for size, _ in fitted.tried], fitted.remembered


def test_the_answer_is_remembered_in_the_cache_directory(tmp_path):
    """For the same model alone; without a directory, and where nothing is to be remembered, all are tried again."""
    everything = [4, 8, 16], False
    assert searched(8, tmp_path) == everything
    assert searched(8, tmp_path) == ([8], True)
    assert searched(8, tmp_path, hidden=7) == everything
    assert searched(8, tmp_path, momentum=0.0) == everything
    assert searched(8, tmp_path, remember=False) == everything
    assert searched(8, None) == everything
    assert searched(8, tmp_path) == ([8], True)


def test_an_answer_that_no_longer_fits_is_searched_again(tmp_path):
    """And replaced; a damaged file counts as none."""
    assert searched(8, tmp_path)[0] == [4, 8, 16]
    assert searched(2, tmp_path) == ([8, 4, 1, 2], False)
    assert searched(2, tmp_path) == ([2], True)
    for content in (b"{", b"[]", b'{"format": 1, "micro_batch_size": "2"}', b'{"format": 2, "micro_batch_size": 2}'):
        (file,) = tmp_path.glob("fit_batch/*.json")
        file.write_bytes(content)
        assert searched(2, tmp_path) == ([4, 1, 2], False)


def test_a_functions_answer_is_remembered(tmp_path, monkeypatch):
    """By its name, its code and the samples: the next search begins at the size that fitted."""
    monkeypatch.setenv("POPTORCH_CACHE_DIR", str(tmp_path))
    called = []

    def train(size, steps):
        called.append(size)
        if size > most:
            raise IPUOutOfMemoryError("full.")

    def other(size, steps):
        called.append(size)

    for limit, function, samples, tried in (
        (4, train, 16, [16, 8, 4]),
        (4, train, 16, [4]),
        (2, train, 16, [4, 2]),
        (2, train, 8, [8, 4, 2]),
        (2, other, 16, [16]),
    ):
        called.clear()
        most = limit
        fit_batch(function, samples)
        assert called == tried
