"""Random numbers of the host in a forward: refused by fused updates; engines warn, as their programs draw once."""

from __future__ import annotations

import copy
import itertools
import logging
import os
import random
import secrets
import time

import numpy as np
import pytest
import torch
from torch import nn

from ignite_ipu import IPUAccelerator, IPUConfig, SessionError, create_ipu_evaluator, create_ipu_trainer
from ignite_ipu.deferred import CaptureError
from ignite_ipu.program.forward import randomness
from ignite_ipu.program.forward.randomness import draws_put_back, generator_states, moved, state_of
from tests.accelerate_state import forget
from tests.supervised import network, task

LOADER = torch.utils.data.DataLoader(task(), batch_size=16)
GLOBAL = np.random.default_rng(0)
SEEDED = torch.Generator()


class Place:
    """An iterator that counts."""

    def __init__(self):
        self.place = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.place += 1
        return self.place


class Jittered(nn.Module):
    """A network whose inputs are scaled by a number, which a function draws from the model's attributes."""

    def __init__(self, draw, source=None):
        super().__init__()
        self.inner, self.draw, self.source = network(), draw, source

    def forward(self, x):
        return self.inner(x * (1 + self.draw(self.source)))


def draw_torch(generator):
    return torch.rand((), generator=generator)


def advanced(iterator):
    next(iterator)
    return iterator


# Sources of random numbers, and their generators.
DRAWS = {
    "the state of random:": lambda: (lambda _: random.random(), None),
    "the state of numpy.random:": lambda: (lambda _: np.random.rand(), None),
    "the state of a torch.Generator": lambda: (draw_torch, torch.Generator()),
    "torch.Generator: draw without generator=": lambda: (lambda _: draw_torch(torch.default_generator), None),
    "the seed of torch": lambda: (lambda _: draw_torch(torch.manual_seed(0) and None), None),
    "a numpy.random.Generator": lambda: (lambda rng: rng.normal(), np.random.default_rng()),
    "numpy.random.Generator: draw": lambda: (lambda _: GLOBAL.normal(), None),
    "numpy.random.Generator": lambda: (lambda draw: draw(), np.random.default_rng().random),
    "RandomState": lambda: (lambda rng: rng.rand(), np.random.RandomState()),
    "a numpy.random.mtrand.RandomState": lambda: (lambda rng: rng.rand(), np.random.RandomState(np.random.PCG64())),
    "PCG64": lambda: (lambda bits: bits.random_raw() % 2, np.random.PCG64()),
    "a random.Random:": lambda: (lambda rngs: rngs["inputs"][0].gauss(0, 1), {"inputs": [random.Random()]}),
    "itertools.cycle": lambda: (next, itertools.cycle([0.1, 0.2])),
    "an iterator, itertools.cycle": lambda: (next, advanced(advanced(itertools.cycle([0.1, 0.2, 0.3])))),
    "zip": lambda: (lambda pairs: next(pairs)[0], zip([0.1, 0.2] * 9, [1, 2] * 9)),
    "enumerate": lambda: (lambda items: next(items)[0], enumerate("ab" * 9)),
    "self.source.place": lambda: (next, Place()),
    "the time or": lambda: (lambda _: time.perf_counter_ns() % 1000 / 1000, None),
    "random bytes": lambda: (lambda _: int.from_bytes(os.urandom(4), "big") / 2**32, None),
    "the time or from random bytes": lambda: (lambda _: secrets.randbits(32) / 2**32, None),
    "from random bytes": lambda: (lambda _: random.Random().random(), None),
}
# The same numbers in every call, in PyTorch, too.
SAME = {
    "a generator of its own": lambda: (lambda _: draw_torch(torch.Generator().manual_seed(1)), None),
    "one that is seeded again": lambda: (lambda generator: draw_torch(generator.manual_seed(1)), torch.Generator()),
    "numpy's, seeded": lambda: (lambda _: np.random.default_rng(1).random(), None),
    "Python's, seeded": lambda: (lambda _: random.Random(1).random(), None),
    "a clock, for a log": lambda: (lambda _: time.perf_counter() * 0, None),
    "an iterator that is not moved": lambda: (operator_length, itertools.repeat(1.0, 3)),
}


def operator_length(iterator):
    return iterator.__length_hint__() / 3


def call_in_loop(model, training):
    """Call a prepared model three times, and return its outputs."""
    forget()
    accelerator = IPUAccelerator(config=IPUConfig(update="device"))
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.0))
    found = []
    for _ in range(3):
        if training:
            output = model.train()(torch.ones(2, 6))
            accelerator.backward(output.sum())
            optimizer.step()
            optimizer.zero_grad()
        else:
            with torch.no_grad():
                output = model.eval()(torch.ones(2, 6))
        found.append(output.detach() + 0)
    return found


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", DRAWS)
def test_a_fused_update_refuses_draws(name, training):
    """A program would have the number of the trace for ever."""
    with pytest.raises(CaptureError, match=r"changes Python values in every call.*\(.*") as error:
        call_in_loop(Jittered(*DRAWS[name]()), training)
    assert name in str(error.value)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", SAME)
def test_numbers_that_stay_are_computed_with(name, training):
    model = Jittered(*SAME[name]())
    with torch.no_grad():
        expected = model(torch.ones(2, 6))
    for output in call_in_loop(model, training):
        torch.testing.assert_close(output, expected)


@pytest.mark.parametrize("make", [random.Random, np.random.default_rng])
def test_a_generator_among_the_arguments(make):
    """A fused update refuses it; otherwise each call draws from it."""

    class Drawing(nn.Linear):
        def forward(self, x, rng):
            return super().forward(x * rng.random())

    forget()
    model = IPUAccelerator(config=IPUConfig(update="device")).prepare(Drawing(6, 2))
    with pytest.raises(CaptureError, match=r"the state of a (random|numpy\.random)\."):
        model(torch.ones(2, 6), make(1))
    forget()
    own = Drawing(6, 2)
    model, rngs = IPUAccelerator().prepare(copy.deepcopy(own)), (make(1), make(1))
    for _ in range(3):
        torch.testing.assert_close(model(torch.ones(2, 6), rngs[0]), own(torch.ones(2, 6), rngs[1]))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", DRAWS)
def test_an_engine_refuses_draws(caplog, name, training):
    """The author did not mean the same number in every step."""
    with pytest.raises(SessionError, match=r"changes Python values in every call.*\(.*") as error:
        said_by_engine(caplog, Jittered(*DRAWS[name]()), training)
    assert name in str(error.value)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", SAME)
def test_an_engine_says_nothing_of_numbers_that_stay(caplog, name, training):
    assert "every call" not in said_by_engine(caplog, Jittered(*SAME[name]()), training)


def said_by_engine(caplog, model, training):
    if training:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        engine = create_ipu_trainer(model, optimizer, nn.functional.cross_entropy)
    else:
        engine = create_ipu_evaluator(model)
    with caplog.at_level(logging.WARNING):
        engine.run(LOADER)
    return caplog.text


def test_draws_are_found_and_undone():
    """The generators of modules go on as if nothing had been drawn."""
    rngs = [
        *randomness.GLOBAL,
        random.Random(0),
        np.random.default_rng(0),
        np.random.RandomState(0),
        np.random.RandomState(np.random.PCG64(0)),
        np.random.PCG64(0),
    ]
    before = list(map(state_of, rngs))

    def draw():
        own = [rngs[2].random(), rngs[3].random(), rngs[4].rand(), rngs[5].rand(), rngs[6].random_raw()]
        return [random.random(), np.random.rand(), torch.rand(1).item()], own

    with draws_put_back():
        result, _ = draw()
        assert len(moved(rngs, before)) == 7
    assert generator_states() == tuple(before[:2])
    assert draw()[0] == result
