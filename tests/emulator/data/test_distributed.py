"""Each process reads its own share of the data set."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.utils.data import IterableDataset, TensorDataset

from ignite_ipu.emulator.data import DataLoader
from ignite_ipu.emulator.enums import DataLoaderMode, SharingStrategy
from ignite_ipu.emulator.errors import Error
from ignite_ipu.emulator.options import Options

small = st.integers(1, 3)


def loaders(n, processes, batch_size=1, device_iterations=1, seed=None, **arguments):
    """Return the loader of every process."""
    made = []
    for process in range(processes):
        opts = Options().deviceIterations(device_iterations)
        opts.Distributed.configureProcessId(process, processes)
        if seed is not None:
            opts.randomSeed(seed)
        made.append(DataLoader(opts, TensorDataset(torch.arange(n)), batch_size, **arguments))
    return made


def flat(loader):
    return [value for item in loader for value in item[0].tolist()]


@given(n=st.integers(4, 60), p=st.integers(2, 4), b=small, d=small)
def test_dropping_gives_equal_whole_batches_to_each_process(n, p, b, d):
    size = b * d
    each = size * (n // (size * p))
    if not each:
        with pytest.raises(ZeroDivisionError, match="fewer than one batch"):
            loaders(n, p, b, d)
        return
    for process, loader in enumerate(loaders(n, p, b, d)):
        assert flat(loader) == list(range(process * each, (process + 1) * each))
        assert len(loader) == each // size and len(loader.dataset) == each


@given(n=st.integers(4, 60), p=st.integers(2, 4), b=small, d=small)
def test_keeping_gives_all_elements_out_as_evenly_as_possible(n, p, b, d):
    parts = np.array_split(np.arange(n), p)
    for part, loader in zip(parts, loaders(n, p, b, d, drop_last=False)):
        assert flat(loader) == part.tolist()
        assert len(loader) == -(-len(part) // (b * d))


def test_published_example():
    first, second = loaders(11, 2, 4)
    assert (flat(first), flat(second)) == ([0, 1, 2, 3], [4, 5, 6, 7])
    first, second = loaders(11, 2, 4, drop_last=False)
    assert (flat(first), flat(second)) == ([0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10])


@given(n=st.integers(12, 50), p=st.integers(2, 3), b=small, d=st.integers(1, 2), seed=st.integers(0, 99))
def test_shuffled_shares_come_from_one_permutation_and_take_turns_with_the_leftovers(n, p, b, d, seed):
    each = b * d * (n // (b * d * p))
    assume(each)
    generator = torch.Generator().manual_seed(seed)
    everybody = loaders(n, p, b, d, seed=seed, shuffle=True)
    for epoch in range(3):
        permutation = torch.randperm(n, generator=generator).tolist()
        moved = n % each if epoch % 2 == 0 else 0
        for process, loader in enumerate(everybody):
            start = process * each + moved
            assert flat(loader) == permutation[start : start + each]


@given(n=st.integers(4, 40), p=st.integers(2, 4), seed=st.integers(0, 99))
def test_shuffling_without_dropping_shows_every_element_once_per_epoch(n, p, seed):
    everybody = loaders(n, p, 2, seed=seed, shuffle=True, drop_last=False)
    epochs = [sorted(value for loader in everybody for value in flat(loader)) for _ in range(2)]
    assert epochs == [list(range(n))] * 2


def test_a_loader_that_was_pickled_goes_on_with_the_same_orders():
    (loader, _) = loaders(20, 2, 2, seed=3, shuffle=True)
    copy = pickle.loads(pickle.dumps(loader))
    assert [flat(loader), flat(loader)] == [flat(copy), flat(copy)]


def test_asynchronous_loading_goes_through_the_same_permutations():
    arguments = {"seed": 3, "shuffle": True}
    (sync, _) = loaders(20, 2, 2, **arguments)
    fork = {"sharing_strategy": SharingStrategy.Fork}
    (ahead, other) = loaders(20, 2, 2, mode=DataLoaderMode.Async, async_options=fork, **arguments)
    expected = [flat(sync) for _ in range(3)]
    found = []
    for _ in range(3):
        torch.manual_seed(0)
        found.append(flat(ahead))
    assert found == expected, "whatever the caller seeds"
    ahead.terminate()
    other.terminate()


def test_without_partitioning_everybody_reads_everything():
    for loader in loaders(6, 2, 2, auto_distributed_partitioning=False):
        assert flat(loader) == list(range(6))


def test_the_share_shows_the_data_set_behind_it():
    class Batched(TensorDataset):
        classes = ("cat", "dog")

        def __getitems__(self, indices):
            return [(self.tensors[0][i] * 10,) for i in indices]

    opts = Options()
    opts.Distributed.configureProcessId(1, 2)
    loader = DataLoader(opts, Batched(torch.arange(6)), 3)
    assert loader.dataset.classes == ("cat", "dog")
    assert flat(loader) == [30, 40, 50], "fetched by the data set's own __getitems__"
    assert loader.dataset[-1][0] == 5
    with pytest.raises(AttributeError):
        loader.dataset.nothing  # noqa: B018


def test_a_sampler_counts_within_the_share():
    assert flat(loaders(8, 2, sampler=[3, 0])[1]) == [7, 4]
    with pytest.raises(IndexError, match="auto_distributed_partitioning=False"):
        flat(loaders(8, 2, sampler=[4])[0])


class Stream(IterableDataset):
    def __iter__(self):
        return iter([1])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"dataset": Stream()}, AssertionError, "not supported for IterableDataset"),
        ({"shuffle": True}, AssertionError, "you must set"),
        ({"batch_size": None, "drop_last": False}, AssertionError, "batch_size=None not allowed"),
        ({"batch_sampler": [[0]]}, Error, "mutually exclusive with auto_distributed_partitioning"),
        ({"batch_size": 5}, ZeroDivisionError, "fewer than one batch of 5 for each of the 2"),
    ],
)
def test_what_cannot_be_split_is_refused(arguments, error, message):
    opts = Options()
    opts.Distributed.configureProcessId(0, 2)
    with pytest.raises(error, match=message):
        DataLoader(opts, **{"dataset": [1, 2, 3, 4], **arguments})
