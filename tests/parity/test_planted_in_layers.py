"""Errors planted in one layer, on the device alone: the report names that layer, with the error."""

from __future__ import annotations

import itertools
import math
import time

import pytest
import torch
from torch import nn

from ignite_ipu import backend, create_ipu_trainer
from ignite_ipu.errors import SessionError
from ignite_ipu.handlers import Gradients
from ignite_ipu.parity.layers import compare_training
from tests.half_precision import needs_half_precision

EVERY_WAY = [
    pytest.param(
        {
            "gradient_accumulation_steps": accumulation,
            "replication_factor": replicas,
            "mixed_precision": "fp16" if half else "no",
        },
        marks=needs_half_precision if half else (),
    )
    for accumulation, replicas, half in itertools.product((1, 2), (1, 2), (False, True))
]


@pytest.fixture(autouse=True)
def _emulator(monkeypatch):
    monkeypatch.setenv(backend.VARIABLE, "emulator")


class Planted(nn.Module):
    """A layer that computes something else on an IPU."""

    def __init__(self, otherwise):
        super().__init__()
        self.inner = nn.Linear(12, 12)
        self.otherwise = otherwise

    def forward(self, x):
        if backend.poptorch().isRunningOnIpu():
            return self.otherwise(self.inner, x)
        return self.inner(x)


class Net(nn.Module):
    """Dropout, batch normalisation and a buffer that every call reads and updates, around the planted layer."""

    def __init__(self, otherwise):
        super().__init__()
        # Defined first, called last.
        self.head = nn.Linear(12, 3)
        self.first = nn.Linear(5, 12)
        self.norm = nn.BatchNorm1d(12)
        self.drop = nn.Dropout(0.5)
        self.planted = Planted(otherwise)
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x):
        x = self.drop(torch.tanh(self.norm(self.first(x))))
        self.scale.mul_(0.5).add_(x.detach().abs().mean())
        return self.head(self.planted(x * self.scale))


def factory_with(otherwise):
    def make():
        model = Net(otherwise)
        generator = torch.Generator().manual_seed(1)
        batches = [
            (torch.randn(8, 5, generator=generator), torch.randint(3, (8,), generator=generator)) for _ in range(5)
        ]
        return model, torch.optim.SGD(model.parameters(), lr=0.05), nn.CrossEntropyLoss(), batches

    return make


def scaled_gradient(inner, x):
    y = inner(x)
    return y.detach() + (y - y.detach()) * 0.5


@pytest.mark.parametrize("factors", EVERY_WAY, ids=lambda factors: "-".join(map(str, factors.values())))
def test_a_layer_without_an_error_agrees_every_way(factors):
    """Replicas update buffers of their own, and native micro-batches stand for them one by one."""
    torch.manual_seed(0)
    report = compare_training(factory_with(lambda inner, x: inner(x)), steps=2, **factors)
    assert report.agrees, report


@pytest.mark.parametrize("factors", EVERY_WAY, ids=lambda factors: "-".join(map(str, factors.values())))
@pytest.mark.parametrize(
    ("otherwise", "kind", "name"),
    [
        (lambda inner, x: inner(x) * 1.1, "output", "planted"),
        (lambda inner, x: inner(x * 1.1), "output", "planted.inner"),
        (lambda inner, x: inner(x) / torch.zeros(1), "output", "planted"),
        (scaled_gradient, "gradient", "planted.inner.bias"),
        (lambda inner, x: inner(x.detach()), "gradient", "norm.bias"),
    ],
    ids=["forward", "its part", "not finite", "backward", "cut"],
)
def test_the_layer_with_the_error_is_named(otherwise, kind, name, factors):
    torch.manual_seed(0)
    first = compare_training(factory_with(otherwise), steps=1, **factors).first
    assert (first.step, first.kind, first.name) == (1, kind, name), first


def test_layers_are_named_as_the_device_called_them():
    """A model that asks for the time is called on the host, too, where the container's output is its layer's."""

    def otherwise(inner, x):
        time.perf_counter()
        return inner(x) * 1.1

    torch.manual_seed(0)
    first = compare_training(factory_with(otherwise), steps=1).first
    assert (first.kind, first.name) == ("output", "planted"), first


def test_values_that_are_not_finite_are_called_so():
    torch.manual_seed(0)
    first = compare_training(factory_with(lambda inner, x: inner(x) / torch.zeros(1)), steps=1).first
    assert first.largest == math.inf
    assert "output of planted in update 1 (float32): not finite where the native values are" in str(first)


@needs_half_precision
def test_another_type_is_a_difference_even_where_values_are_close():
    torch.manual_seed(0)
    first = compare_training(factory_with(lambda inner, x: inner(x).half()), steps=1, tolerance=0.1).first
    assert str(first) == "output of planted in update 1 (float16): of another type than on the host, float32"


def test_rounding_to_another_type_and_back_is_found_by_its_size():
    """A value of 1 in half precision is up to 2**-12 off, where 1e-4 of it are allowed."""
    torch.manual_seed(0)
    first = compare_training(factory_with(lambda inner, x: inner(x).half().float()), steps=1).first
    assert (first.kind, first.name, first.dtype) == ("output", "planted", "float32")
    assert first.allowed < first.largest < first.scale * 2**-11


def test_an_error_of_the_backward_pass_is_bracketed():
    torch.manual_seed(0)
    text = str(compare_training(factory_with(scaled_gradient), steps=1))
    assert "that of head.weight agrees: the backward pass differs between there and planted.inner.bias" in text


@needs_half_precision
def test_adam_is_said_to_make_updates_of_rounding():
    """The gradient of a bias in front of batch normalisation is rounding alone, and Adam divides by its size."""

    def make():
        model, _, loss_fn, batches = factory_with(lambda inner, x: inner(x))()
        return model, torch.optim.Adam(model.parameters(), lr=0.05), loss_fn, batches

    torch.manual_seed(0)
    report = compare_training(make, steps=1, mixed_precision="fp16")
    assert (report.first.kind, report.first.name) == ("weight", "first.bias")
    assert "Its gradient agrees. An optimizer that divides by the gradient's size, as Adam does" in str(report)


def test_a_gradient_that_the_step_does_not_compute_is_named():
    model = nn.ModuleDict({"used": nn.Linear(2, 1), "idle": nn.Linear(2, 1)})
    model.forward = lambda x: model["used"](x)
    trainer = create_ipu_trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss())
    Gradients().attach(trainer)
    with pytest.raises(SessionError, match=r"no gradient of 'idle\.weight': the loss does not depend on it"):
        trainer.run([(torch.ones(4, 2), torch.ones(4, 1))])
