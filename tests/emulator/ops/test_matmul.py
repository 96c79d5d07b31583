"""Serialised matrix products."""

from __future__ import annotations

import pytest
import torch

import ignite_ipu.emulator as poptorch
from ignite_ipu.emulator import MatMulSerializationMode as Mode

A, B = torch.randn(4, 6), torch.randn(6, 8)


@pytest.mark.parametrize(
    ("mode", "factor"), [(Mode.InputChannels, 4), (Mode.ReducingDim, 3), (Mode.OutputChannels, 8), (Mode.Disabled, 0)]
)
def test_the_product_is_the_product(mode, factor, compiled):
    """And the setting is on its operator."""
    assert torch.equal(poptorch.serializedMatMul(A, B, mode, factor), A @ B)
    model = compiled(lambda a, b: poptorch.serializedMatMul(a, b, mode, factor, keep_precision=True))
    assert torch.allclose(model(A, torch.cat([B])), A @ B)
    (node,) = [node for node in model._executable.compiled.graph.nodes.nodes if node.meta.get("operator") == "matmul"]
    assert node.meta["serialisation"] == (mode, factor, True)


@pytest.mark.parametrize("factor", [0, 4, -2])
def test_the_factor_divides_the_dimension(factor, infer):
    with pytest.raises(poptorch.Error, match="must be a multiple of the serialisation factor"):
        infer(lambda a, b: poptorch.serializedMatMul(a, b, Mode.ReducingDim, factor), A, B)


@pytest.mark.parametrize(
    "arguments", [("reducing_dim", 2, False), (Mode.ReducingDim, 2.0, False), (Mode.ReducingDim, 2, 1)]
)
def test_types(arguments):
    with pytest.raises(AssertionError):
        poptorch.serializedMatMul(A, B, *arguments)
