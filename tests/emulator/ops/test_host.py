"""Layers that run on the host from inside a model on the device."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ignite_ipu.emulator as poptorch

X = torch.tensor([[1.0, 2.0]])


def test_a_layer_runs_once_to_learn_shapes_and_then_at_every_execution(compiled):
    """The trace gives it zeros; each execution its own values."""
    seen = []

    def layer(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.tolist())
        assert not poptorch.isRunningOnIpu()
        return torch.cat([x, x.sort().values])

    operator = poptorch.CPU(layer, "sorts")
    model = compiled(lambda x: operator(x + 1) * 2)
    assert torch.equal(model(X), torch.tensor([[4.0, 6.0], [4.0, 6.0]]))
    model(-X)
    assert seen == [[[0, 0]], [[2, 3]], [[0, -1]]]
    assert operator.in_shapes == [(1, 2)] and operator.out_shapes == [(2, 2)]


def test_a_module_of_the_model_keeps_its_weights_on_the_host():
    """The layer may be a sub-module: its parameters are frozen, and read when it runs."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 3)
            self.host = poptorch.CPU(self.layer, "layer")
            self.on_device = nn.Linear(3, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.on_device(self.host(x))

    net = Net()
    assert not net.layer.weight.requires_grad
    model = poptorch.inferenceModel(net)
    expected = net.on_device(net.layer(X))
    assert torch.allclose(model(X), expected)
    assert list(model._executable.compiled.graph.weights) == [name for name, _ in net.named_parameters()]
    model.destroy()


def test_several_results_make_a_list(infer):
    """Whatever their container and type, they arrive as a list of float32."""
    operator = poptorch.CPU(lambda x, y: (x.int(), x * y), "two")
    first, second = infer(lambda x: operator(x, x), X)
    assert first.dtype is torch.float32 and torch.equal(first, X) and torch.equal(second, X * X)


def test_on_the_host_it_is_a_call():
    assert poptorch.CPU(lambda x: x + 1, "adds")(X).tolist() == [[2, 3]]


def test_keyword_arguments_are_dropped_with_a_warning(caplog):
    assert poptorch.CPU(lambda x, factor=1: x * factor, "scales")(X, factor=5) is not None
    assert "['factor'] are dropped" in caplog.text


def test_an_id_names_one_operator(infer):
    one, other = poptorch.CPU(torch.relu, "same"), poptorch.CPU(torch.relu, "same")
    with pytest.raises(poptorch.Error, match="have the ID 'same'"):
        infer(lambda x: one(x) + other(x), X)


def test_one_operator_may_be_called_twice(infer):
    """With different shapes too."""
    operator = poptorch.CPU(lambda x: x * 2, "doubles")
    assert torch.equal(infer(lambda x: operator(operator(x)[0]), X), X[0] * 4)


def test_not_in_training(gradient):
    operator = poptorch.CPU(torch.relu, "relu")
    with pytest.raises(poptorch.Error, match="only supported in inference"):
        gradient(lambda w: poptorch.identity_loss(operator(w), "sum"), X)
