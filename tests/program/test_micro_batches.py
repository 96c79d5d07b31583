"""Micro-batches are joined place by place; differences in more than values are named."""

from __future__ import annotations

from collections import namedtuple
from typing import Any, List

import numpy as np
import pytest
import torch

from ignite_ipu.errors import BatchError
from ignite_ipu.program.layout import BatchLayout
from ignite_ipu.program.micro_batches import (
    NotJoined,
    PerMicroBatch,
    cut_shown,
    holds_numbers,
    join,
    join_results,
    join_to_show,
    sample_count,
    select,
    shown,
    split,
)

Pair = namedtuple("Pair", "left right")


def graph(nodes: int) -> Any:
    return {"nodes": torch.arange(nodes), "edges": [torch.arange(2 * nodes)], "name": "graph", "scale": 0.5}


def test_tensors_are_joined_by_rows() -> None:
    """With any number of rows in each; equal entries stay."""
    joined = join([graph(3), graph(3), graph(3)])
    assert joined["nodes"].tolist() == 3 * [0, 1, 2] and len(joined["edges"][0]) == 18
    assert joined["name"] == "graph" and joined["scale"] == 0.5
    assert [each["edges"][0].tolist() for each in split(joined, 3)] == 3 * [list(range(6))]
    assert join([joined]) is joined and split(joined, 1) == [joined]


@pytest.mark.parametrize(
    ("numbers", "dtype"),
    [([0.25, 0.5], torch.float32), ([1, 2], torch.int64), ([torch.tensor(1.5), torch.tensor(2.5)], torch.float32)],
)
def test_numbers_that_differ_are_one_for_each(numbers: List[Any], dtype: Any) -> None:
    """A program gets each micro-batch's own; code on the host sees a tensor of them."""
    joined = join([Pair(torch.zeros(2), number) for number in numbers])
    assert isinstance(joined.right, PerMicroBatch) and holds_numbers(joined)
    assert shown(joined).right.dtype is dtype and shown(joined).right.tolist() == list(map(float, numbers))
    assert select(joined, [1], 2).right.tolist() == [float(numbers[1])]
    layout, leaves = BatchLayout.of(("x",), (joined,), 2)
    assert leaves[1].tolist() == list(map(float, numbers))
    assert layout.rows == 4 and layout.rebuild([leaves[0][:2], leaves[1][:1]])[0].right.shape == ()
    same, _ = BatchLayout.of(("x",), (join([Pair(torch.zeros(2), numbers[0])] * 2),), 2)
    same.check(layout)


def test_numbers_too_large_for_the_device_are_refused() -> None:
    """As those that are alike."""
    with pytest.raises(BatchError, match="x is 4294967296, which does not fit the 32 bits"):
        BatchLayout.of(("x",), (join([2**32, 1]),), 2)


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (torch.zeros(2, 3), torch.zeros(2, 4), r"x has the shapes \(2, 3\), \(2, 4\)"),
        (torch.zeros(2), torch.zeros(2, dtype=torch.long), "x has the types torch.float32, torch.int64"),
        ({"a": torch.zeros(2)}, {"b": torch.zeros(2)}, "x has other keys"),
        ([torch.zeros(2)], [torch.zeros(2)] * 2, "x has other keys or another length in each: a list"),
        ([torch.zeros(2), "a"], [torch.zeros(2), "b"], r"x\[1\] is 'a' in one of them and 'b' in another"),
        ((torch.zeros(2), True), (torch.zeros(2), False), r"x\[1\] is True in one of them and False"),
        (torch.zeros(2), None, r"x is a tensor of shape \(2,\) in one of them and None in another"),
    ],
)
def test_other_differences_are_named(one: Any, other: Any, words: str) -> None:
    """With the place and both sides."""
    with pytest.raises(NotJoined, match=words):
        join([one, one, other], "x")


def test_objects_with_hidden_tensors_are_not_taken_for_alike() -> None:
    """Those of one micro-batch would be taken for all."""

    class Hidden:
        def __init__(self, value: float) -> None:
            self.held = [{0: {"deep": [{torch.full((2,), value)}]}}]

    with pytest.raises(NotJoined, match="is a Hidden in one of them and a Hidden in another"):
        join([Hidden(1.0), Hidden(1.0)])


def test_what_handlers_see() -> None:
    """Lists of strings and arrays have rows, too; numbers are a tensor where they differ."""
    parts = [{"text": ["a", "b"], "x": np.zeros(2), "n": 0.1}, {"text": ["c"], "x": np.ones(1), "n": 2.0}]
    joined = join_to_show(parts)
    assert joined["text"] == ["a", "b", "c"] and joined["x"].tolist() == [0, 0, 1]
    torch.testing.assert_close(joined["n"], torch.tensor([0.1, 2]))
    again = cut_shown(joined, parts)
    assert [{**part, "x": part["x"].tolist()} for part in again] == [
        {**part, "x": part["x"].tolist()} for part in parts
    ]
    joined["text"][2], joined["x"], joined["n"][1] = "d", joined["x"] + 1, 5
    changed = cut_shown(joined, parts)
    assert [(part["text"], part["x"].tolist(), part["n"]) for part in changed] == [
        (["a", "b"], [1, 1], 0.1),
        (["d"], [2], 5),
    ]


class Share:
    """An object in a batch."""

    def __init__(self) -> None:
        self.value = 0.5


def described(rows: int) -> Any:
    x = torch.arange(float(rows)).reshape(rows, 1)
    return {"x": x, "texts": ["a"] * rows, "n": rows, "of": Share(), "scale": torch.tensor(2.0), "mode": ("mean", 1)}


CHANGES = {
    "none": lambda batch: None,
    "rows": lambda batch: batch.update(x=batch["x"] * 2),
    "memory": lambda batch: batch["x"].numpy().fill(3.0),
    "new rows": lambda batch: batch.update(mask=torch.ones(len(batch["x"])), names=["b"] * len(batch["x"])),
    "new structure": lambda batch: batch.update(x={"left": (batch["x"],), "right": batch["x"] + 1}),
    "an attribute": lambda batch: vars(batch["of"]).update(value=0.25),
    "memory of a number": lambda batch: batch["scale"].data.fill_(5.0),
    "a constant": lambda batch: batch.update(mode=("sum", 2), new=None),
    "another order": lambda batch: batch.update(mode=batch.pop("mode"), x=batch.pop("x")),
    "fewer": lambda batch: batch.pop("texts"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_of_all_is_a_change_of_each(change: Any) -> None:
    """The parts are those that the same change of each micro-batch makes."""
    expected = [described(2), described(3)]
    for batch in expected:
        change(batch)
    parts = [described(2), described(3)]
    joined = join_to_show(parts)
    change(joined)
    for part, other in zip(cut_shown(joined, parts), expected):
        assert list(part) == list(other) and part.pop("of").value == other.pop("of").value
        assert part.pop("mode") == other.pop("mode") and part.pop("texts", None) == other.pop("texts", None)
        torch.testing.assert_close({**part, "names": 0, "new": 0}, {**other, "names": 0, "new": 0})
        assert (part.get("names"), part.get("new")) == (other.get("names"), other.get("new"))


@pytest.mark.parametrize("key", ["x", "texts", "mask"])
def test_another_number_of_rows_is_refused(key: str) -> None:
    parts = [described(2), described(3)]
    with pytest.raises(NotJoined, match="A value has 4 rows, in the place of 5"):
        cut_shown({**join_to_show(parts), key: torch.zeros(4)}, parts)


def test_results_without_dimensions_are_stacked() -> None:
    """Also where they are alike."""
    assert join_results([torch.tensor(1.0)] * 3, "The loss").tolist() == [1.0] * 3


def test_samples_are_the_rows_of_the_targets() -> None:
    """If they are not those of all tensors."""
    assert sample_count((graph(3), torch.zeros(2))) == 2
    assert sample_count((torch.zeros(4, 2), torch.zeros(4))) == 4
    assert sample_count(((torch.zeros(6), torch.zeros(4)), None)) == 4
