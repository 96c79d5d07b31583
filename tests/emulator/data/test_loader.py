"""A loader's items fill one call: their number, their order, and the samples left out."""

from __future__ import annotations

import logging
import math
import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, IterableDataset, SequentialSampler, TensorDataset

from ignite_ipu.emulator.data import DataLoader
from ignite_ipu.emulator.enums import CommGroupType, DataLoaderMode, SharingStrategy
from ignite_ipu.emulator.errors import Error
from ignite_ipu.emulator.options import Options

small = st.integers(1, 3)


def options(device_iterations=1, accumulation=1, replicas=1, group_size=1):
    opts = Options()
    opts.deviceIterations(device_iterations).replicationFactor(replicas)
    opts.Training.gradientAccumulation(accumulation)
    opts.inputReplicaGrouping(group_size, CommGroupType.Consecutive)
    return opts


def numbers(n):
    return TensorDataset(torch.arange(n))


def rows(loader):
    return [item[0].tolist() for item in loader]


def chunks(values, size, drop_last):
    """Cut a list as one would by hand."""
    cut = [values[i : i + size] for i in range(0, len(values), size)]
    return [c for c in cut if len(c) == size] if drop_last else cut


class Stream(IterableDataset):
    def __init__(self, n, has_length=False):
        self.n = n
        if has_length:
            self.__class__ = SizedStream

    def __iter__(self):
        return iter(torch.arange(self.n))


class SizedStream(Stream):
    def __len__(self):
        return self.n


@given(
    n=st.integers(1, 40), b=small, d=small, a=small, r=st.sampled_from([1, 2, 4]), g=st.sampled_from([1, 2]), drop=...
)
def test_items_are_consecutive_runs_of_combined_batches(n: int, b, d, a, r, g, drop: bool):
    g = min(g, r)
    loader = DataLoader(options(d, a, r, g), numbers(n), batch_size=b, drop_last=drop)
    size = b * d * a * (r // g)
    expected = chunks(list(range(n)), size, drop)
    assert loader.combinedBatchSize == size
    assert rows(loader) == expected
    assert len(loader) == len(expected) == (n // size if drop else math.ceil(n / size))


@given(n=st.integers(1, 30), b=small, d=small, drop=..., seed=st.integers(0, 99))
def test_shuffled_order_is_that_of_torch_with_the_same_seed(n: int, b, d, drop: bool, seed):
    loader = DataLoader(options(d), numbers(n), batch_size=b, shuffle=True, drop_last=drop)
    reference = torch.utils.data.DataLoader(numbers(n), batch_size=b * d, shuffle=True, drop_last=drop)
    torch.manual_seed(seed)
    ours = rows(loader) + rows(loader)
    torch.manual_seed(seed)
    assert ours == rows(reference) + rows(reference)


@given(n=st.integers(1, 30), b=small, d=small, a=small, drop=..., sampler_drops=...)
def test_batches_of_a_batch_sampler_are_joined_in_groups(n: int, b, d, a, drop: bool, sampler_drops: bool):
    sampler = BatchSampler(SequentialSampler(range(n)), b, drop_last=sampler_drops)
    loader = DataLoader(options(d, a), numbers(n), batch_sampler=sampler, drop_last=drop)
    groups = chunks(list(sampler), d * a, drop)
    assert rows(loader) == [[index for batch in group for index in batch] for group in groups]
    assert loader.combinedBatchSize == b * d * a
    assert len(loader) == len(sampler), "sampler batches, not items, as in PopTorch"


def test_joined_batches_keep_their_structure():
    data = [{"x": torch.tensor([float(i)]), "y": (i, torch.tensor(i))} for i in range(8)]
    loader = DataLoader(options(2), data, batch_sampler=[[0, 1], [2, 3], [4, 5], [6, 7]])
    first, second = loader
    assert first["x"].tolist() == [[0.0], [1.0], [2.0], [3.0]]
    assert second["y"][0].tolist() == second["y"][1].tolist() == [4, 5, 6, 7]
    assert loader.combinedBatchSize == 2, "a plain list has no batch_size attribute"


def test_published_example_of_sizes():
    loader = DataLoader(options(2, 3), numbers(20))
    assert (loader.combinedBatchSize, len(loader)) == (6, 3)
    loader = DataLoader(options(2, 3), numbers(20), drop_last=False)
    assert len(loader) == 4 and rows(loader)[-1] == [18, 19]


def test_an_iterable_data_set_is_cut_in_order_and_its_length_comes_from_itself():
    loader = DataLoader(options(2), SizedStream(7), batch_size=2)
    assert [x.tolist() for x in loader] == [[0, 1, 2, 3]] and len(loader) == 1
    with pytest.raises(TypeError, match="has no len"):
        len(DataLoader(options(2), Stream(7)))


def test_batch_size_none_passes_items_through_and_has_no_options():
    loader = DataLoader(options(3), [torch.ones(2), torch.zeros(5)], batch_size=None, drop_last=False)
    assert [len(x) for x in loader] == [2, 5] and loader.combinedBatchSize is None
    with pytest.raises(AttributeError, match="options"):
        loader.options  # noqa: B018
    with pytest.raises(ValueError, match="drop_last"):
        DataLoader(options(3), [torch.ones(2)], batch_size=None)


def test_options_are_frozen_and_readable():
    opts = options(2)
    loader = DataLoader(opts, numbers(4))
    assert loader.options is opts
    with pytest.raises(AttributeError, match="frozen"):
        opts.deviceIterations(3)


def test_arguments_of_torch_pass_through():
    loader = DataLoader(
        options(), numbers(4), batch_size=2, sampler=[3, 1, 2, 0], collate_fn=lambda samples: [len(samples), samples]
    )
    assert [[s[0].item() for s in samples] for _, samples in loader] == [[3, 1], [2, 0]]
    assert loader.drop_last and not loader.persistent_workers
    loader.terminate()


def test_worker_processes_persist_unless_told_otherwise():
    loader = DataLoader(options(), numbers(4), num_workers=1)
    assert loader.persistent_workers
    assert rows(loader) == rows(loader) == [[0], [1], [2], [3]]
    assert not DataLoader(options(), numbers(4), num_workers=1, persistent_workers=False).persistent_workers


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"batch_sampler": [[0]], "batch_size": 2}, Error, "mutually exclusive with batch_size, shuffle"),
        ({"batch_sampler": [[0]], "shuffle": True}, Error, "mutually exclusive with batch_size, shuffle"),
        ({"async_options": {"rebatched_size": 3}}, AssertionError, "manually specify"),
        ({"mode": DataLoaderMode.AsyncRebatched}, AssertionError, "must be None or greater than 1"),
        (
            {"mode": DataLoaderMode.AsyncRebatched, "batch_size": 4, "rebatched_worker_size": 5},
            AssertionError,
            "must be <= to the combined batch size",
        ),
        ({"mode": DataLoaderMode.AsyncRebatched, "batch_size": None, "drop_last": False}, AssertionError, "Rebatching"),
        ({"shuffle": True, "dataset": Stream(3)}, ValueError, "shuffle"),
        ({"mode": 7}, ValueError, "DataLoaderMode"),
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"num_workers": -1}, ValueError, "num_workers"),
    ],
)
def test_refused_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        DataLoader(options(), **{"dataset": numbers(4), **arguments})


def test_options_must_come_first():
    with pytest.raises(AssertionError, match=r"must be a poptorch\.Options"):
        DataLoader(numbers(4), options())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dataset": numbers(5), "batch_size": 2, "drop_last": False}, "is not divisible by the number"),
        ({"dataset": numbers(3), "batch_sampler": [[0], [1], [2]], "drop_last": False}, "length of the batch_sampler"),
        ({"dataset": numbers(3), "batch_sampler": iter([[0]]), "drop_last": False}, "has no length"),
        ({"dataset": Stream(4), "num_workers": 2}, "will return 2 times each element"),
        ({"dataset": numbers(4), "rebatched_worker_size": 1}, "rebatched_worker_size has no effect"),
        ({"dataset": numbers(4), "async_options": {"buffer_size": 1}}, "async_options have no effect"),
    ],
)
def test_warnings(caplog, arguments, message):
    with caplog.at_level(logging.WARNING, logger="poptorch::python"):
        DataLoader(options(2), **arguments)
    assert message in caplog.text


@pytest.mark.parametrize(
    "arguments",
    [
        {"dataset": numbers(5), "batch_size": 2},
        {"dataset": numbers(8), "batch_size": 2, "drop_last": False},
        {"dataset": Stream(4), "num_workers": 2, "worker_init_fn": print},
        {"dataset": numbers(4), "batch_sampler": [[0], [1]], "drop_last": False},
    ],
)
def test_no_warning_without_cause(caplog, arguments):
    DataLoader(options(2), **arguments)
    assert not caplog.records


def test_batches_with_different_numbers_of_tensors_cannot_be_joined():
    data = [{"x": torch.ones(1)}, {"x": torch.ones(1), "y": torch.ones(1)}]
    loader = DataLoader(options(2), data, batch_sampler=[[0], [1]])
    with pytest.raises(ValueError, match="always build the same"):
        list(loader)


@pytest.mark.parametrize("strategy", [SharingStrategy.Fork, SharingStrategy.ForkServer])
def test_loader_processes_are_forked_from_the_worker(strategy):
    """It has imported their modules; a server of their own would import it again for each."""
    loader = DataLoader(
        Options(),
        TensorDataset(torch.arange(8)),
        num_workers=2,
        mode=DataLoaderMode.Async,
        async_options={"sharing_strategy": strategy},
    )
    assert [item.item() for (item,) in loader] == list(range(8))
    worker = loader._accessor._worker.pid
    with open(f"/proc/{worker}/task/{worker}/children") as file:
        children = {int(pid) for pid in file.read().split()}
    groups = {pid: os.getpgid(pid) for pid in children}
    assert list(groups.values()) == [worker, worker]
    loader.terminate()
