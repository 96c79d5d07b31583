"""Batches made by the worker's own collation, against those that torch's loader makes."""

from __future__ import annotations

from collections import namedtuple
from typing import Any, List, Optional

import pytest
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset, default_collate

from ignite_ipu.emulator.data import AsynchronousDataAccessor
from ignite_ipu.emulator.data.worker.collation import Collation, Rows, collate_straight
from ignite_ipu.emulator.enums import SharingStrategy

FEATURES, LABELS = torch.randn(10, 3, generator=torch.Generator().manual_seed(0)), torch.arange(10)
ROWS = TensorDataset(FEATURES, LABELS)
Pair = namedtuple("Pair", "x y")


def slot(rows: int = 4) -> List[torch.Tensor]:
    return [torch.zeros(rows, 3), torch.zeros(rows, dtype=torch.int64)]


def assert_equal(found: Any, expected: Any) -> None:
    assert len(found) == len(expected)
    for one, two in zip(found, expected):
        assert one.dtype is two.dtype
        assert torch.equal(one, two)


def test_samples_are_stacked_in_the_slot() -> None:
    where = slot()
    samples = [ROWS[index] for index in (3, 1, 4, 1)]
    made = Collation(lambda: where)(samples)
    assert all(one is two for one, two in zip(made, where))
    assert_equal(made, default_collate(samples))


@pytest.mark.parametrize(
    "samples",
    [
        [(FEATURES[0], 1), (FEATURES[1], 2), (FEATURES[2], 3), (FEATURES[3], 4)],
        [(FEATURES[0], 0.5)] * 4,
        [(FEATURES[0].double(), LABELS[0])] * 4,
        [(FEATURES[0], LABELS[0])] * 3,
        [[FEATURES[0].numpy(), LABELS[0]]] * 4,
        [(torch.nn.Parameter(FEATURES[0]), LABELS[0])] * 4,
        [Pair(FEATURES[0], LABELS[0])] * 4,
        [(FEATURES[0], LABELS[0]), (FEATURES[0].double(), LABELS[0])] * 2,
    ],
)
def test_other_samples_are_left_to_torch(samples: List[Any]) -> None:
    """Numbers, other types and shapes, a short batch, arrays, named tuples, types that mix."""
    made = Collation(slot)(samples)
    assert_equal(made, default_collate(samples))
    assert type(made) is type(default_collate(samples))


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([(FEATURES[0], LABELS[0]), (FEATURES[0],)] * 2, "equal size"),
        ([(FEATURES[0], LABELS[0]), (FEATURES[0, :2], LABELS[0])] * 2, "equal size"),
    ],
)
def test_samples_that_torch_refuses_are_refused_by_it(samples: List[Any], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        Collation(slot)(samples)


@pytest.mark.parametrize("where", [None, slot()])
@pytest.mark.parametrize("indices", [[3, 1, 4, 1], [9, 0], [-1, 0, 1, -10], [torch.tensor(2), torch.tensor(3)]])
def test_rows_are_those_of_the_data_set(indices: List[Any], where: Optional[List[torch.Tensor]]) -> None:
    made = Collation(lambda: where)(Rows(ROWS, indices))
    assert_equal(made, default_collate([ROWS[index] for index in indices]))


def test_strings_come_as_torch_has_them() -> None:
    samples = [(FEATURES[0], "a"), (FEATURES[1], "b")]
    assert Collation(lambda: slot(2))(samples)[1] == default_collate(samples)[1]


def test_an_index_that_does_not_exist_is_the_data_sets_error() -> None:
    with pytest.raises(IndexError, match="index 10 is out of bounds for dimension 0 with size 10"):
        Collation(None)(Rows(ROWS, [0, 10]))


class Doubled(TensorDataset):
    """Its rows are not those of its tensors."""

    def __getitem__(self, index: int) -> Any:
        return tuple(2 * tensor for tensor in super().__getitem__(index))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    "dataset",
    [ROWS, Subset(Subset(ROWS, [8, 6, 4, 2]), [3, 1, 0, 2]), Doubled(FEATURES, LABELS)],
    ids=["rows", "some rows", "a class of its own"],
)
def test_an_accessor_delivers_what_the_loader_would(dataset: Any, workers: int) -> None:
    """Three epochs, some batches in slots and the last ones short of a batch left out."""

    def loader() -> Any:
        return DataLoader(dataset, 2, shuffle=True, num_workers=workers, drop_last=True)

    torch.manual_seed(7)
    accessor = AsynchronousDataAccessor(loader(), sharing_strategy=SharingStrategy.Fork, load_indefinitely=False)
    found = [[part.clone() for part in item] for _ in range(3) for item in accessor]
    accessor.terminate()
    torch.manual_seed(7)
    reference = loader()
    expected = [item for _ in range(3) for item in reference]
    assert len(found) == len(expected)
    for one, two in zip(found, expected):
        assert_equal(one, two)


def test_a_loader_with_a_collate_function_keeps_it() -> None:
    own = DataLoader(ROWS, 2, collate_fn=lambda samples: samples)
    kept = own.collate_fn
    collate_straight(own, lambda: None)
    assert own.collate_fn is kept
