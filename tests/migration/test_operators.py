"""The arguments that PopTorch does not take are arguments of PyTorch's, at the positions of PyTorch's."""

from __future__ import annotations

import inspect
import pydoc

import pytest
from torch import nn

from ignite_ipu.migration.operators import REFUSED_LOSSES, RESTRICTIONS


def parameters(name):
    """Return the names of what PyTorch's function or layer takes, in order."""
    found = pydoc.locate(name)
    if isinstance(found, type) and issubclass(found, nn.RNNBase):
        names = list(inspect.signature(nn.RNNBase).parameters)[1:]  # without `mode`, which the class gives
        return [*names[:3], "nonlinearity", *names[3:]] if found is nn.RNN else names
    if name.startswith("torch.linalg."):
        return ["A", "ord"]  # as documented: a built-in function without a signature
    return list(inspect.signature(found).parameters)


@pytest.mark.parametrize("name", RESTRICTIONS)
def test_positions_are_those_of_pytorch(name):
    for restriction in RESTRICTIONS[name]:
        assert parameters(name)[restriction.position] == restriction.argument


@pytest.mark.parametrize("name", REFUSED_LOSSES)
def test_refused_losses_are_losses_of_pytorch(name):
    assert callable(pydoc.locate(name))


@pytest.mark.skipif(
    nn.RNN(4, 8, 1, "relu").nonlinearity == "tanh", reason="before PyTorch 2.1 it is no positional argument"
)
def test_the_nonlinearity_of_an_rnn_comes_before_its_bias():
    """Its constructor has no signature to compare with."""
    assert nn.RNN(4, 8, 1, "tanh", False).bias is False
    assert nn.RNN(4, 8, 1, "tanh", True, False, 0.0, True).bidirectional is True
