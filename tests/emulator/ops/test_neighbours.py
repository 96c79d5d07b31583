"""Farthest-point sampling and nearest neighbours against brute force."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import ignite_ipu.emulator as poptorch


class Samples(nn.Module):
    def __init__(self, *arguments: object) -> None:
        super().__init__()
        self.arguments = arguments

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        return poptorch.fps(points, *self.arguments)


class Neighbours(nn.Module):
    def __init__(self, *batches: object) -> None:
        super().__init__()
        self.batches = batches

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return poptorch.nearest(x, y, *self.batches)


def run(model: nn.Module, *inputs: torch.Tensor) -> torch.Tensor:
    executor = poptorch.inferenceModel(model)
    result = executor(*inputs)
    executor.destroy()
    return result


@given(
    st.lists(st.integers(1, 7), min_size=1, max_size=3),
    st.floats(0.05, 1.0),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_each_sample_is_the_farthest_from_those_before(sizes, ratio, random_start, seed):
    """Example by example: the first where told, each next one maximises the distance to the nearest chosen."""
    points = torch.randn(sum(sizes), 3, generator=torch.Generator().manual_seed(seed))
    ptr = [sum(sizes[:index]) for index in range(len(sizes) + 1)]
    found = run(Samples(ptr, ratio, random_start), points)
    assert found.dtype is torch.int32
    left = found.tolist()
    for begin, end in zip(ptr, ptr[1:]):
        count = math.ceil(ratio * (end - begin))
        chosen, left = left[:count], left[count:]
        assert random_start or chosen[0] == begin
        for index in range(1, count):
            nearest = [
                min(torch.dist(points[candidate], points[other]).item() for other in chosen[:index])
                for candidate in range(begin, end)
            ]
            assert nearest[chosen[index] - begin] == pytest.approx(max(nearest), rel=1e-5)
    assert not left


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 3), st.sampled_from(["none", "list", "tensor", "mixed"]))
def test_nearest_is_the_closest_row_of_the_same_example(rows_x, rows_y, examples, kind):
    """With the examples as lists, tensors, one of each, or none at all."""
    x, y = torch.randn(rows_x * examples, 2), torch.randn(rows_y * examples, 2)
    of_x = [index // rows_x for index in range(len(x))]
    of_y = [index // rows_y for index in range(len(y))]
    batches = {"none": (None, None), "list": (of_x, of_y), "mixed": (of_x, of_y), "tensor": (of_x, of_y)}[kind]

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("of_y", torch.tensor(of_y))
            self.register_buffer("of_x", torch.tensor(of_x))

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            if kind == "tensor":
                return poptorch.nearest(a, b, self.of_x, self.of_y)
            return poptorch.nearest(a, b, batches[0], self.of_y if kind == "mixed" else batches[1])

    for index, found in enumerate(run(Model(), x, y).tolist()):
        candidates = [row for row in range(len(y)) if kind == "none" or of_y[row] == of_x[index]]
        best = min(torch.dist(x[index], y[row]).item() for row in candidates)
        assert found in candidates
        assert torch.dist(x[index], y[found]).item() == pytest.approx(best, rel=1e-5)


def test_an_example_without_neighbours_is_an_error():
    with pytest.raises(poptorch.Error, match="none in y"):
        run(Neighbours([0, 1], [0, 0]), torch.randn(2, 2), torch.randn(2, 2))


def test_neither_has_a_host_implementation():
    with pytest.raises(NotImplementedError, match="no CPU implementation"):
        poptorch.fps(torch.randn(4, 2), [0, 4])
    with pytest.raises(NotImplementedError, match="no CPU implementation"):
        poptorch.nearest(torch.randn(4, 2), torch.randn(4, 2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0], [0, 1]), r"torch\.tensor as src"),
        ((torch.randn(4, 2), (0, 4)), "ptr must be a list"),
        ((torch.randn(4, 2), [4]), "at least 2 elements"),
        ((torch.randn(4, 2), [0, 4], 1), "ratio must be a float"),
        ((torch.randn(4, 2), [0, 4], 0.5, 1), "random_start must be a bool"),
    ],
)
def test_types_of_fps(arguments, message):
    with pytest.raises(poptorch.Error, match=message):
        poptorch.fps(*arguments)


@pytest.mark.parametrize(
    ("arguments", "message"), [(([0, 5],), "must rise"), (([0, 3, 2],), "must rise"), (([0, 4], 1.5), "at most 1")]
)
def test_values_of_fps(arguments, message):
    with pytest.raises(poptorch.Error, match=message):
        run(Samples(*arguments), torch.randn(4, 2))


def test_types_of_nearest():
    with pytest.raises(poptorch.Error, match=r"must be torch\.Tensors or lists"):
        poptorch.nearest(torch.randn(4, 2), torch.randn(4, 2), (0, 0, 0, 0))
