"""Rows cut, filled up, selected and joined, against slicing the whole."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from typing import Any, Tuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ignite_ipu.errors import RowsError
from ignite_ipu.program.tensors.rows import join_rows, join_tensors, row_count, split_rows, take_rows
from ignite_ipu.program.tensors.trees import map_tensors, tensors_in

Pair = namedtuple("Pair", "left right")


def batch(rows: int) -> Any:
    return {"a": torch.arange(rows), "b": [torch.arange(2 * rows).reshape(rows, 2), "label", torch.tensor(7)]}


@given(st.integers(1, 20), st.integers(1, 8))
def test_splitting_and_taking_give_every_row_back_once(total: int, rows: int) -> None:
    """Pieces have exactly `rows` rows; without their filling they join to the whole batch."""
    pieces = list(split_rows(batch(total), rows))
    assert all(len(piece["a"]) == rows and len(piece["b"][0]) == rows for piece, _ in pieces)
    assert sum(valid for _, valid in pieces) == total
    without_scalar = [(Pair(piece["a"], piece["b"][0]), valid) for piece, valid in pieces]
    joined = join_rows([take_rows(piece, valid, rows) for piece, valid in without_scalar])
    assert joined.left.tolist() == list(range(total))
    assert joined.right.tolist() == batch(total)["b"][0].tolist()


def test_filling_repeats_the_last_row() -> None:
    """The filling is a real sample, so that no invented value can turn into NaN on the device."""
    ((piece, valid),) = split_rows(batch(2), 4)
    assert valid == 2 and piece["a"].tolist() == [0, 1, 1, 1]
    assert piece["b"][1] == "label" and piece["b"][2] == 7


def test_a_full_batch_is_not_copied() -> None:
    """The usual case costs nothing: the same tensors come back."""
    whole = batch(4)
    ((piece, valid),) = split_rows(whole, 4)
    assert piece is whole and valid == 4
    assert take_rows(whole, 4, 4) is whole
    assert join_rows([whole]) is whole


def test_outputs_without_a_row_per_sample_are_refused_when_filled() -> None:
    """A loss over a micro-batch has the filling mixed in: it must not reach a metric."""
    with pytest.raises(RowsError, match=r"shape \(2,\) has not one row for each of the 4 rows"):
        take_rows((torch.zeros(4, 3), torch.zeros(2)), 3, 4)
    with pytest.raises(RowsError, match=r"shape \(\)"):
        take_rows(torch.tensor(1.0), 3, 4)


def test_row_count_wants_agreement() -> None:
    """Tensors of one batch have the same number of rows; otherwise samples are undefined."""
    assert row_count((torch.zeros(3, 1), {"y": torch.zeros(3)}, torch.tensor(1.0), "s")) == 3
    with pytest.raises(RowsError, match=r"\[2, 3\]"):
        row_count((torch.zeros(3), torch.zeros(2)))
    with pytest.raises(RowsError, match="no tensor with rows"):
        row_count(["x", torch.tensor(1.0)])


def test_containers_keep_their_type() -> None:
    """Named tuples, ordered dictionaries and subclasses with attributes keep their types."""

    class Output(OrderedDict):  # type: ignore[type-arg]
        note = ""

    output = Output(x=torch.ones(1))
    output.note = "kept"
    doubled = map_tensors((Pair(torch.ones(1), None), output), lambda tensor: tensor * 2)
    assert doubled[0] == Pair(torch.tensor([2.0]), None)
    assert type(doubled[1]) is Output and doubled[1].note == "kept" and doubled[1]["x"].item() == 2
    assert [tensor.item() for tensor in tensors_in(doubled)] == [2, 2]


@pytest.mark.parametrize("shape", [(), (2,), (3, 2)])
def test_tensors_are_joined_row_by_row(shape: Tuple[int, ...]) -> None:
    """A tensor without dimensions is one row."""
    tensors = [torch.full(shape, float(number)) for number in range(3)]
    expected = [row for tensor in tensors for row in (tensor.tolist() if shape else [tensor.item()])]
    assert join_tensors(tensors).tolist() == expected
