"""Convolutions that run together."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ignite_ipu.emulator as poptorch


class Two(nn.Module):
    def __init__(self, multi: poptorch.MultiConv) -> None:
        super().__init__()
        self.multi, self.one, self.other = multi, nn.Conv1d(1, 2, 3), nn.Conv1d(1, 2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with self.multi:
            one, other = self.one(x), torch.relu(self.other(x))
        return one + other


X = torch.randn(1, 1, 8)


def recorded(multi: poptorch.MultiConv) -> list:
    net = Two(multi)
    model = poptorch.inferenceModel(net)
    assert torch.allclose(model(X), net(X), atol=1e-6)
    nodes = [node for node in model._executable.compiled.graph.nodes.nodes if node.meta.get("operator") == "conv1d"]
    model.destroy()
    return [node.meta["multi_conv"] for node in nodes]


def test_results_are_those_of_the_convolutions_alone():
    assert recorded(poptorch.MultiConv()) == [{}, {}]


def test_settings_are_recorded_on_each_convolution():
    """One value counts for all, a list has one for each."""
    multi = poptorch.MultiConv().availableMemoryProportions([0.1, 0.9]).partialsTypes(torch.half)
    multi = multi.enableConvDithering(True).planType(poptorch.MultiConvPlanType.Serial)
    multi = multi.perConvReservedTiles(100).cycleBackOff(0.5)
    common = {
        "partialsTypes": torch.half,
        "enableConvDithering": True,
        "planType": poptorch.MultiConvPlanType.Serial,
        "perConvReservedTiles": 100,
        "cycleBackOff": 0.5,
    }
    assert recorded(multi) == [
        {"availableMemoryProportions": 0.1, **common},
        {"availableMemoryProportions": 0.9, **common},
    ]
    multi.availableMemoryProportions(None).enableConvDithering(None).planType(None)
    assert recorded(multi)[0] == {"partialsTypes": torch.half, "perConvReservedTiles": 100, "cycleBackOff": 0.5}


def test_lists_have_one_value_for_each_convolution():
    with pytest.raises(poptorch.Error, match="has 3 values for 2 convolutions"):
        recorded(poptorch.MultiConv().availableMemoryProportions([0.1, 0.2, 0.3]))


def test_it_holds_convolutions_and_does_not_nest(infer):
    def empty(x: torch.Tensor) -> torch.Tensor:
        with poptorch.MultiConv():
            return x + 1

    def nested(x: torch.Tensor) -> torch.Tensor:
        with poptorch.MultiConv(), poptorch.MultiConv():
            return x

    with pytest.raises(poptorch.Error, match="Unexpected end_multi_conv"):
        infer(empty, X)
    with pytest.raises(poptorch.Error, match=r"Nested poptorch\.MultiConv is not supported"):
        infer(nested, X)


def test_an_exception_inside_passes(infer):
    def fails(x: torch.Tensor) -> torch.Tensor:
        with poptorch.MultiConv():
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        infer(fails, X)


@pytest.mark.parametrize(
    ("setter", "value", "error", "message"),
    [
        ("availableMemoryProportions", "0.5", AssertionError, "Invalid available memory proportion"),
        ("availableMemoryProportions", [], AssertionError, "Invalid available memory proportion"),
        ("partialsTypes", torch.int32, ValueError, "Invalid partials types"),
        ("partialsTypes", [torch.half, 1], ValueError, "Invalid partials types"),
        ("enableConvDithering", 1, ValueError, "must be bool or list of bools"),
        ("planType", 0, AssertionError, "Invalid plan type"),
        ("perConvReservedTiles", 1.0, AssertionError, "takes an int"),
        ("cycleBackOff", 1, AssertionError, "takes a float"),
    ],
)
def test_types(setter, value, error, message):
    with pytest.raises(error, match=message):
        getattr(poptorch.MultiConv(), setter)(value)
