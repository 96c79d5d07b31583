"""Random numbers of the host in a forward: a warning of engines, which a program that draws once does not repeat."""

from __future__ import annotations

import logging
import random

import numpy as np
import pytest
import torch
from torch import nn

from ignite_ipu import create_ipu_trainer
from ignite_ipu.host_draws import drawn_by, generator_states
from tests.supervised import network, task


class Jittered(nn.Module):
    def __init__(self, draw):
        super().__init__()
        self.inner, self.draw = network(), draw

    def forward(self, x):
        return self.inner(x * (1 + self.draw()))


@pytest.mark.parametrize(("draw", "name"), [(random.random, "random"), (np.random.rand, "numpy.random")])
def test_an_engine_warns_of_draws(caplog, draw, name):
    """The same number in every step is not what the author meant."""
    model = Jittered(draw)
    trainer = create_ipu_trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.functional.cross_entropy)
    with caplog.at_level(logging.WARNING):
        trainer.run(torch.utils.data.DataLoader(task(), batch_size=16))
    assert f"the state of {name}: draw with torch.rand" in caplog.text


def test_draws_are_found_and_undone():
    """The generators go on as if nothing had been drawn."""
    before = generator_states()
    result, drawn = drawn_by(lambda: random.random() + np.random.rand())
    assert len(drawn) == 2
    assert generator_states() == before
    assert drawn_by(lambda: torch.rand(1))[1] == []
    assert random.random() + np.random.rand() == result
