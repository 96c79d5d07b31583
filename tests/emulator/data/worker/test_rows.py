"""Batches whose rows are taken at once, against those that torch's loader makes of them one by one."""

from __future__ import annotations

import pickle
from typing import Any, Callable, List

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, default_collate

from ignite_ipu.emulator.data import AsynchronousDataAccessor
from ignite_ipu.emulator.data.worker.rows import take_rows_at_once
from ignite_ipu.emulator.enums import SharingStrategy

FEATURES, LABELS = torch.randn(10, 3, generator=torch.Generator().manual_seed(0)), torch.arange(10)
ROWS = TensorDataset(FEATURES, LABELS)


class Doubled(TensorDataset):
    """Its rows are not those of its tensors."""

    def __getitem__(self, index: int) -> Any:
        return tuple(2 * tensor for tensor in super().__getitem__(index))


class Wrapped(Dataset):  # type: ignore[type-arg]
    """A user's data set around another."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return tuple(-tensor for tensor in self.dataset[index])


def assert_equal(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    assert len(found) == len(expected)
    for one, two in zip(found, expected):
        assert one.dtype is two.dtype
        assert one.requires_grad is two.requires_grad
        assert torch.equal(one, two)


def batch_of(dataset: Any, indices: List[Any]) -> Any:
    loader = DataLoader(dataset, batch_sampler=[indices])
    take_rows_at_once(loader)
    return next(iter(loader))


def outcome(make: Callable[[], Any]) -> Any:
    """Return all there is to tell of a batch, or the error instead of it."""
    try:
        (tensor,) = made = make()
    except Exception as error:
        return type(error), str(error)
    return type(made), tensor.dtype, tensor.layout, tensor.requires_grad, tensor.to_dense().tolist()


@pytest.mark.parametrize("indices", [[3, 1, 4, 1], [9, 0], [-1, 0, 1, -10], [torch.tensor(2), torch.tensor(3)], [True]])
def test_rows_are_those_of_the_data_set(indices: List[Any]) -> None:
    dataset = TensorDataset(FEATURES, LABELS)
    expected = default_collate([dataset[index] for index in indices])
    assert_equal(batch_of(dataset, indices), expected)
    # A loader that another one iterates has torch's own collation still.
    assert_equal(next(iter(DataLoader(dataset, batch_sampler=[indices]))), expected)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.nn.Parameter(FEATURES),
        FEATURES.clone().requires_grad_(),
        FEATURES[:, 1] > 0,
        FEATURES.t().contiguous().t(),
        FEATURES.to(torch.complex64).conj(),
        FEATURES.to_sparse(),
    ],
    ids=["a parameter", "a gradient", "one dimension", "transposed", "conjugate", "sparse"],
)
def test_rows_of_any_tensor_are_those_of_the_data_set(tensor: torch.Tensor) -> None:
    dataset = TensorDataset(tensor)
    expected = outcome(lambda: default_collate([dataset[3], dataset[1]]))
    assert outcome(lambda: batch_of(dataset, [3, 1])) == expected


def test_an_index_that_does_not_exist_is_the_data_sets_error() -> None:
    with pytest.raises(IndexError, match="index 10 is out of bounds for dimension 0 with size 10"):
        batch_of(TensorDataset(FEATURES, LABELS), [0, 10])


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    "dataset",
    [ROWS, Subset(Subset(ROWS, [8, 6, 4, 2]), [3, 1, 0, 2]), Doubled(FEATURES, LABELS), Wrapped(ROWS)],
    ids=["rows", "some rows", "a class of its own", "wrapped"],
)
def test_an_accessor_delivers_what_the_loader_would(dataset: Any, workers: int) -> None:
    """In the same order for three epochs."""

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


@pytest.mark.parametrize("is_subset", [False, True] if hasattr(Subset, "__getitems__") else [False])
def test_rows_of_a_tensor_data_set_are_taken_at_once(is_subset: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = TensorDataset(FEATURES, LABELS)
    loader = DataLoader(Subset(rows, [5, 6, 7]) if is_subset else rows, 2)
    expected = list(loader)
    take_rows_at_once(loader)
    # Loader processes that are not forked are sent both.
    dataset, collate = pickle.loads(pickle.dumps((loader.dataset, loader.collate_fn)))
    monkeypatch.setattr(TensorDataset, "__getitem__", None)
    for found in (list(loader), list(DataLoader(dataset, 2, collate_fn=collate))):
        for one, two in zip(found, expected):
            assert_equal(one, two)


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(ROWS, 2, collate_fn=lambda samples: samples),
        DataLoader(ROWS, batch_size=None),
        DataLoader(Doubled(FEATURES, LABELS), 2),
        DataLoader(Wrapped(ROWS), 2),
    ],
    ids=["own collation", "no batches", "own rows", "wrapped"],
)
def test_other_loaders_stay_as_they_are(loader: Any) -> None:
    before = loader.collate_fn
    take_rows_at_once(loader)
    assert loader.collate_fn is before
    assert not hasattr(ROWS, "__getitems__")
