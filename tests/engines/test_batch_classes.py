"""Batches of classes of the user's own, through loaders, trainers, evaluators and metrics."""

from __future__ import annotations

import dataclasses
from collections import UserDict
from typing import NamedTuple

import pytest
import torch
from ignite.metrics import Accuracy, Loss
from torch import nn
from torch.utils.data import DataLoader

import ignite_ipu.emulator as poptorch
from ignite_ipu import BatchError, create_ipu_evaluator, create_ipu_trainer
from tests.supervised import assert_same_weights, network, task, train_natively

CROSS_ENTROPY = nn.CrossEntropyLoss()


@dataclasses.dataclass
class Fields:
    x: torch.Tensor
    y: torch.Tensor


class Named(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


class AttrDict(dict):
    """A dictionary that is the table of its own attributes."""

    def __init__(self, x, y):
        super().__init__(x=x, y=y)
        self.__dict__ = self


class Plain:
    """A class of its own, which only Plain's parser makes known to PopTorch."""

    def __init__(self, x, y):
        self.x, self.y = x, y


class Registered(Plain):
    pass


class Slotted:
    __slots__ = ("x", "y")

    def __init__(self, x, y):
        self.x, self.y = x, y


@dataclasses.dataclass(init=False)
class Nested:
    fields: Fields
    source: str

    def __init__(self, x, y):
        self.fields, self.source = Fields(x, y), "task"

    x = property(lambda self: self.fields.x)
    y = property(lambda self: self.fields.y)


class Keyed:
    def __init__(self, x, y):
        self._fields = {"x": x, "rest": [y]}

    x = property(lambda self: self._fields["x"])
    y = property(lambda self: self._fields["rest"][0])


class Hidden:
    """A class whose tensors only its own methods find."""

    def __init__(self, x, y):
        self._fields = UserDict(x=x, y=y)

    x = property(lambda self: self._fields["x"])
    y = property(lambda self: self._fields["y"])


class Parser(poptorch.ICustomArgParser):
    def yieldTensors(self, struct):
        yield struct.x
        yield struct.y

    def reconstruct(self, original, tensors):
        return type(original)(next(tensors), next(tensors))


class Collate:
    """Makes a batch of a class; an object, so that a loader's process can have it."""

    def __init__(self, kind):
        self.kind = kind

    def __call__(self, samples):
        return self.kind(*map(torch.stack, zip(*samples)))


class OfBatches(nn.Module):
    """A network that takes the whole batch."""

    def __init__(self):
        super().__init__()
        self.network = network()

    def forward(self, batch):
        return self.network(batch.x)


@pytest.fixture(autouse=True)
def _registered():
    poptorch.registerCustomArgParser(Registered, Parser())
    yield
    poptorch.registerCustomArgParser(Registered, None)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("kind", [Fields, Named, AttrDict, Plain, Registered, Slotted, Nested, Keyed])
def test_training_and_evaluation_are_native(kind, whole):
    """Whether the model takes the batch or a part of it; of incomplete calls, too, every sample counts once."""
    model, reference = OfBatches() if whole else network(), network()
    optimizer, native = (torch.optim.SGD(each.parameters(), lr=0.05) for each in (model, reference))
    prepare = lambda batch, **_: (batch if whole else batch.x, batch.y)  # noqa: E731
    trainer = create_ipu_trainer(
        model,
        optimizer,
        CROSS_ENTROPY,
        prepare_batch=prepare,
        output_transform=lambda x, y, y_pred, loss: (x, y_pred, y),
        config={"output_mode": "Final"},
        device_iterations=2,
        gradient_accumulation_steps=2,
    )
    trainer.run(DataLoader(task(), batch_size=4, collate_fn=Collate(kind)))
    x, _, y = trainer.state.output
    assert isinstance(trainer.state.batch, kind) and isinstance(x, kind if whole else torch.Tensor)
    torch.testing.assert_close((x.x if whole else x, y), tuple(tensor[-4:] for tensor in task().tensors))
    train_natively(reference, native, DataLoader(task(), batch_size=4), 2)
    assert_same_weights(model.network if whole else model, reference)
    metrics = {"accuracy": Accuracy(), "loss": Loss(CROSS_ENTROPY)}
    evaluator = create_ipu_evaluator(model, metrics, prepare_batch=prepare)
    found = evaluator.run(DataLoader(task(50), batch_size=4, collate_fn=Collate(kind))).metrics
    x, y = task(50).tensors
    assert found["loss"] == pytest.approx(CROSS_ENTROPY(reference(x), y).item(), rel=1e-4)
    assert found["accuracy"] == pytest.approx((reference(x).argmax(1) == y).double().mean().item())


def test_prepare_batch_may_take_out_what_nobody_else_finds():
    """A loader leaves the rows of such batches to it; handed over whole they are refused."""
    model, reference = network(), network()
    optimizer, native = (torch.optim.SGD(each.parameters(), lr=0.05) for each in (model, reference))
    loader = DataLoader(task(), batch_size=4, collate_fn=Collate(Hidden))
    prepare = lambda batch, **_: (batch.x, batch.y)  # noqa: E731
    create_ipu_trainer(model, optimizer, CROSS_ENTROPY, prepare_batch=prepare).run(loader)
    train_natively(reference, native, DataLoader(task(), batch_size=4))
    assert_same_weights(model, reference)
    model = OfBatches()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    whole = lambda batch, **_: (batch, batch.y)  # noqa: E731
    trainer = create_ipu_trainer(model, optimizer, CROSS_ENTROPY, prepare_batch=whole)
    with pytest.raises(BatchError, match=r"A batch holds a Hidden with tensors.*prepare_batch, or register a parser"):
        trainer.run(loader)
