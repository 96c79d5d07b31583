"""Values of a traced call besides tensors are frozen in the program."""

from __future__ import annotations

import array
from typing import Any

import numpy as np
import pytest
import torch

import ignite_ipu.emulator as poptorch
from tests.emulator.calls import Calls

X = torch.arange(6.0).view(2, 3)


def _written(x: torch.Tensor, index: Any) -> torch.Tensor:
    y = x.clone()
    y[:, index] = 0
    return y


USES = {
    "index": lambda x, index: x[:, index],
    "index of a write": _written,
    "data": lambda x, index: x.new_tensor(index) + x.sum(),
    "within a tuple": lambda x, index: x[(slice(None), index)],
}


# PyTorch takes an array.array as data, not as an index.
CASES = [(use, kind) for use in USES for kind in ("numpy", "list")] + [("data", "array")]
KINDS = {"numpy": np.array, "list": list, "array": lambda values: array.array("q", values)}


@pytest.mark.parametrize(("use", "kind"), CASES)
def test_an_array_is_copied_when_it_is_traced(use, kind):
    values = KINDS[kind]([0, 1])
    executor = poptorch.inferenceModel(Calls(lambda x: USES[use](x, values)))
    expected = USES[use](X, values)
    torch.testing.assert_close(executor(X), expected)
    values[0] = values[1] = 2
    torch.testing.assert_close(executor(X), expected)
