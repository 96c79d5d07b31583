"""torch loaders are iterated as they are, a device call's batches at a time."""

from __future__ import annotations

import gc
import itertools
import logging
import os
import random
import re
import traceback
import weakref
from typing import Any, Iterator, List, Optional

import pytest
import torch
from ignite.engine import Engine
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)

from ignite_ipu import backend
from ignite_ipu.engines.call_loader import CallLoader, MicroBatches
from ignite_ipu.engines.loaders import Loaders
from ignite_ipu.errors import LoaderError
from ignite_ipu.program.geometry import BatchGeometry
from ignite_ipu.session.resolved import Resolved

poptorch = backend.poptorch()


class Numbers(Dataset):  # type: ignore[type-arg]
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return index


class Stream(IterableDataset):  # type: ignore[type-arg]
    """Numbers split over the workers, as a data set that streams files does."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        return iter(range(first, self.count, step))


def itself(worker: int) -> int:
    return worker


def options(d: int = 1, a: int = 1, r: int = 1) -> Any:
    result = poptorch.Options().deviceIterations(d).replicationFactor(r)
    result.Training.gradientAccumulation(a)
    return result


def resolved(training: bool, d: int = 1, a: int = 1, r: int = 1) -> Resolved:
    return Resolved.of(options(d, a, r), training)


def training(loader: Any, d: int = 1, a: int = 1, r: int = 1) -> Any:
    return Loaders(resolved(True, d, a, r)).swap(loader)


def evaluation(loader: Any, d: int = 1, r: int = 1) -> Any:
    return Loaders(resolved(False, d, r=r)).swap(loader)


def rows(loader: Any) -> List[List[int]]:
    calls = (call.show() if isinstance(call, MicroBatches) else call for call in loader)
    return [call.tolist() for call in calls]


def flat(batches: List[List[int]]) -> List[int]:
    return list(itertools.chain.from_iterable(batches))


def test_one_item_is_one_device_call() -> None:
    """Consecutive samples, D * A * R micro-batches at a time: the order [D][A][R][B]."""
    swapped = training(DataLoader(Numbers(50), batch_size=2), d=2, a=3, r=2)
    assert rows(swapped) == [list(range(24)), list(range(24, 48))]
    assert len(swapped) == 2 and swapped.micro_batches == 12


def test_a_call_is_the_batches_that_the_loader_yields() -> None:
    """`collate_fn` has seen each of them by itself."""

    def centred(samples: List[int]) -> torch.Tensor:
        numbers = torch.tensor(samples).float()
        return numbers - numbers.mean()

    loader: Any = DataLoader(Numbers(8), batch_size=2, collate_fn=centred)
    native = list(loader)
    for call, start in zip(training(loader, a=2), (0, 2)):
        assert isinstance(call, MicroBatches)
        torch.testing.assert_close(list(call), native[start : start + 2])


@pytest.mark.parametrize(
    "make_sampler",
    [
        lambda data: RandomSampler(data),
        lambda data: RandomSampler(data, generator=torch.Generator().manual_seed(3)),
        lambda data: RandomSampler(data, replacement=True, num_samples=40),
        lambda data: SubsetRandomSampler(range(5, 30)),
        lambda data: WeightedRandomSampler([1.0, 2.0] * 20, 40),
        lambda data: SequentialSampler(data),
    ],
)
@pytest.mark.parametrize("swap", [training, evaluation])
def test_samplers_give_the_order_they_give_natively(make_sampler: Any, swap: Any) -> None:
    """For the same seed the same samples come in the same order, in every epoch."""
    orders = []
    for wrap in (lambda loader: loader, lambda loader: swap(loader, d=2)):
        torch.manual_seed(11)
        data = Numbers(40)
        loader = wrap(DataLoader(data, batch_size=2, sampler=make_sampler(data), drop_last=False))
        orders.append([flat(rows(loader)) for _ in range(2)])
    native, swapped = orders
    assert all(mine == theirs[: len(mine)] and len(theirs) - len(mine) < 4 for mine, theirs in zip(swapped, native))


@pytest.mark.parametrize("generator", [None, 5])
@pytest.mark.parametrize("workers", [0, 2])
def test_shuffling_stays_the_same_shuffling(generator: Any, workers: int) -> None:
    """shuffle=True gives native order, worker processes and generators included."""
    orders = []
    for swap in (False, True):
        torch.manual_seed(11)
        made = None if generator is None else torch.Generator().manual_seed(generator)
        loader: Any = DataLoader(Numbers(24), batch_size=2, shuffle=True, generator=made, num_workers=workers)
        loader = training(loader, a=4) if swap else loader
        orders.append([flat(rows(loader)) for _ in range(2)])
    assert orders[0] == orders[1]
    assert orders[0][0] != orders[0][1]


def test_the_users_loader_is_what_is_iterated() -> None:
    """Its attributes are those of the data; worker processes are its own, and nothing is pinned for an IPU."""

    def collate(samples: List[int]) -> torch.Tensor:
        return torch.tensor(samples) * 10

    loader: Any = DataLoader(
        Numbers(8), batch_size=2, num_workers=2, collate_fn=collate, persistent_workers=True, pin_memory=True
    )
    swapped = training(loader, d=2)
    assert swapped.loader is loader and swapped.sampler is loader.sampler and swapped.collate_fn is collate
    assert rows(swapped) == [[0, 10, 20, 30], [40, 50, 60, 70]]
    with pytest.raises(AttributeError, match="no attribute 'shuffle'"):
        swapped.shuffle  # noqa: B018


def test_the_arithmetic_of_a_loader_is_explained_once(caplog: pytest.LogCaptureFixture) -> None:
    """However often it is given to an engine."""
    loaders = Loaders(resolved(True, d=2))
    loader: Any = DataLoader(Numbers(11), batch_size=2)
    with caplog.at_level(logging.INFO, logger="ignite_ipu"):
        for _ in range(2):
            assert isinstance(loaders.swap(loader), CallLoader)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "11 samples / 4 per device call = 2 steps per epoch, 3 samples dropped" in caplog.text


def test_an_engine_does_not_keep_loaders() -> None:
    """A loader that was made for one evaluation is freed with its data set and its processes."""
    loaders = Loaders(resolved(False, d=2))
    loader: Any = DataLoader(Numbers(8), batch_size=2)
    rows(loaders.swap(loader))
    alive = weakref.ref(loader)
    del loader
    gc.collect()
    assert alive() is None


def test_batch_samplers_are_kept() -> None:
    """Their batches are the micro-batches, on several IPUs, too; the length counts device calls."""
    batches = [[0, 9], [8, 1], [2, 7], [6, 3], [4, 5]]
    for factors in ({"d": 2}, {"r": 2}):
        swapped = training(DataLoader(Numbers(10), batch_sampler=batches), **factors)
        assert rows(swapped) == [[0, 9, 8, 1], [2, 7, 6, 3]] and len(swapped) == 2


def test_short_last_batch_of_a_batch_sampler_is_dropped_in_training() -> None:
    """As every incomplete device call is."""
    sampler = BatchSampler(SequentialSampler(Numbers(7)), 2, drop_last=False)
    swapped = training(DataLoader(Numbers(7), batch_sampler=sampler), d=2)
    assert rows(swapped) == [[0, 1, 2, 3]] and len(swapped) == 1


def test_batches_of_uneven_batch_samplers_stay_whole() -> None:
    """The step decides on the meaning of their shapes for a program."""
    loader = DataLoader(Numbers(10), batch_sampler=[[0, 1], [2], [3, 4], [5, 6, 7]])
    assert [list(map(len, call)) for call in training(loader, d=2)] == [[2, 1], [2, 3]]


def test_batch_sampler_without_a_size() -> None:
    """Its batches are counted, if their samples cannot be."""

    class Sampler:
        def __iter__(self) -> Iterator[List[int]]:
            return iter([[0, 1], [2, 3], [4, 5]])

    loaders = Loaders(resolved(True, d=2))
    loader = DataLoader(Numbers(6), batch_sampler=Sampler())
    assert rows(loaders.swap(loader)) == [[0, 1, 2, 3]]
    assert loaders.geometry(loader) is None
    assert loaders.explain(loader).startswith("2 batches of the loader are one device call (deviceIterations 2 x")


@pytest.mark.parametrize("count", [1, 7, 8, 9, 23])
@pytest.mark.parametrize("workers", [0, 2])
def test_evaluation_sees_every_sample_once(count: int, workers: int) -> None:
    """The last item is shorter; nothing is dropped, nothing comes twice."""
    swapped = evaluation(DataLoader(Numbers(count), batch_size=2, num_workers=workers), d=4)
    batches = rows(swapped)
    assert flat(batches) == list(range(count))
    assert len(batches) == len(swapped) == -(-count // 8)


def test_evaluation_takes_uneven_batch_samplers() -> None:
    """In their order, each as one micro-batch."""
    swapped = evaluation(DataLoader(Numbers(10), batch_sampler=[[9], [0, 1, 2], [5, 4]]), d=2)
    assert rows(swapped) == [[9, 0, 1, 2], [5, 4]] and len(swapped) == 2


def test_evaluation_honours_drop_last() -> None:
    """Samples that the user's loader leaves out in Ignite are not evaluated either."""
    swapped = evaluation(DataLoader(Numbers(9), batch_size=2, drop_last=True), d=3)
    assert rows(swapped) == [[0, 1, 2, 3, 4, 5], [6, 7]] and len(swapped) == 2


def test_evaluation_of_a_tail_warns_of_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """PopTorch's warning that a short item is refused would be wrong here."""
    with caplog.at_level(logging.WARNING):
        evaluation(DataLoader(Numbers(9), batch_size=2), d=2)
    assert caplog.text == ""


@pytest.mark.parametrize("workers", [0, 2])
def test_streams_work(workers: int) -> None:
    """Iterable data sets train in full calls, and are evaluated completely."""
    loader: Any = DataLoader(Stream(22), batch_size=2, num_workers=workers, worker_init_fn=lambda worker: None)
    assert all(len(batch) == 4 for batch in rows(training(loader, d=2)))
    assert sorted(flat(rows(evaluation(loader, d=2)))) == list(range(22))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("mode", ["Sync", "Async", "AsyncRebatched"])
def test_samples_that_a_stream_leaves_out_are_counted(
    mode: str, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    """That is known when the stream has ended: 22 samples fill 5 calls of 4, each worker's 11 have a short batch."""
    loader: Any = DataLoader(Stream(22), batch_size=2, num_workers=workers, worker_init_fn=itself)
    made = Loaders(resolved(True, d=2), mode=poptorch.DataLoaderMode[mode]).swap(loader)
    with caplog.at_level(logging.WARNING, logger="ignite_ipu"):
        for _ in range(2):
            assert len(rows(made)) == 5
    made.terminate()
    (record,) = caplog.records
    assert "2 samples at the end of the data, a Stream, did not fill a device call of 4" in record.getMessage()


def test_ready_batches_pass_through() -> None:
    """Lists and PopTorch's own loaders are iterated as they are."""
    batches = [torch.zeros(4)] * 3
    loaders = Loaders(resolved(True, d=2))
    assert loaders.swap(batches) is batches
    assert loaders.swap(None) is None
    own = poptorch.DataLoader(options(d=2), Numbers(8), batch_size=2)
    assert loaders.swap(own) is own


@pytest.mark.parametrize("ready", [[torch.zeros(4)] * 3, itertools.repeat(torch.zeros(4))])
def test_that_ready_batches_are_cut_is_said_once(ready: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A loader's batches would be joined instead; where there is one micro-batch, and in evaluation, it is all one."""
    loaders = Loaders(resolved(True, d=2, a=3))
    with caplog.at_level(logging.WARNING, logger="ignite_ipu"):
        for silent in (Loaders(resolved(True)), Loaders(resolved(False, d=2))):
            silent.swap(ready)
        assert not caplog.records
        loaders.swap(ready)
        loaders.swap(ready)
    (record,) = caplog.records
    told = (
        rf"a {type(ready).__name__}, .* cut into 6 .*deviceIterations 2 x gradientAccumulation 3 .* or join 6 of them"
    )
    assert re.search(told, record.getMessage())


def test_poptorch_loader_for_other_options_is_refused() -> None:
    """Its items do not match the compiled model; the message has both sides."""
    own = poptorch.DataLoader(options(d=4), Numbers(64), batch_size=2)
    with pytest.raises(LoaderError, match=r"puts? 4 micro-batches.*deviceIterations 4.*compiled for 2"):
        training(own, d=2)


def test_poptorch_loader_that_drops_samples_is_mentioned(caplog: pytest.LogCaptureFixture) -> None:
    """In evaluation its default leaves samples out; that is said once."""
    own = poptorch.DataLoader(options(), Numbers(9), batch_size=2)
    loaders = Loaders(resolved(False))
    with caplog.at_level(logging.WARNING, logger="ignite_ipu"):
        assert loaders.swap(own) is own
        loaders.swap(own)
    assert len(caplog.records) == 1 and "leaves out the last 1 of 9 samples" in caplog.text


def test_data_smaller_than_a_call() -> None:
    """The error has the arithmetic."""
    with pytest.raises(
        LoaderError, match=r"9 samples, fewer than one device call.*2 \(micro-batch\) x 3.*= 12 samples"
    ):
        training(DataLoader(Numbers(9), batch_size=2), d=2, a=3)


@pytest.mark.parametrize(
    "data",
    [[], DataLoader(Numbers(0), batch_size=2, sampler=[]), DataLoader(Numbers(4), batch_sampler=[])],
    ids=["list", "loader", "batch sampler"],
)
@pytest.mark.parametrize("swap", [training, evaluation])
def test_empty_data_is_an_error(data: Any, swap: Any) -> None:
    """Known to be empty: refused before running, by an error that is Ignite's `ValueError`, too."""
    with pytest.raises(LoaderError, match="nothing to run on") as caught:
        swap(data)
    with pytest.raises(ValueError, match="zero size"):
        Engine(lambda engine, batch: None).run([])
    assert isinstance(caught.value, ValueError)


def test_streams_that_yield_nothing() -> None:
    """Found out only by iterating: an error then, not an epoch of no steps."""
    with pytest.raises(LoaderError, match=r"yielded nothing: .* one device call of 8 samples"):
        rows(training(DataLoader(Stream(5), batch_size=2), d=4))
    with pytest.raises(LoaderError, match="generator, yielded no batch"):
        list(training(batch for batch in ()))


def test_an_exhausted_stream_of_batches_is_not_empty() -> None:
    """Only data that never yielded is called empty: Ignite decides the meaning of a short epoch."""
    batches = training(iter([torch.zeros(2)]))
    assert len(list(batches)) == 1
    assert list(batches) == []


class Raises(Numbers):
    def __init__(self, count: int, first: int = 3) -> None:
        super().__init__(count)
        self.first = first

    def __getitem__(self, index: int) -> int:
        if index == self.first:
            raise KeyError(f"sample {index} is broken")
        return index


class Dies(Numbers):
    def __getitem__(self, index: int) -> int:
        if index == 3:
            os._exit(1)
        return index


@pytest.mark.parametrize("workers", [0, 1])
def test_workers_that_raise_pass_their_error_on(workers: int) -> None:
    """The type is the data set's own, as in PyTorch."""
    with pytest.raises(KeyError, match="sample 3 is broken") as caught:
        rows(training(DataLoader(Raises(8), batch_size=2, num_workers=workers), d=2))
    end_iterator(caught)


def test_workers_that_die_are_explained() -> None:
    """A killed process is named, with the usual reason."""
    with pytest.raises(LoaderError, match=r"worker process .* died: DataLoader worker .*num_workers=0") as caught:
        rows(training(DataLoader(Dies(8), batch_size=2, num_workers=1, timeout=1), d=2))
    end_iterator(caught)


def end_iterator(caught: pytest.ExceptionInfo[BaseException]) -> None:
    """End PyTorch's iterator, which the frames of the exception hold in a circle.

    A later collection may close the descriptors of the iterator's queues before the iterator itself does.
    """
    error: Optional[BaseException] = caught.value
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__


class OwnIteration(DataLoader):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        return (batch + 100 for batch in super().__iter__())


def test_loaders_that_iterate_in_their_own_way() -> None:
    """Their items are the batches."""
    loader = OwnIteration(Numbers(4), batch_size=2)
    assert rows(training(loader)) == [[100, 101], [102, 103]]
    assert rows(training(loader, d=2)) == [[100, 101, 102, 103]]


class WithoutParts(DataLoader):  # type: ignore[type-arg]
    """Has none of a `DataLoader`'s attributes."""

    def __init__(self, batches: List[torch.Tensor]) -> None:
        self.batches = batches

    def __iter__(self) -> Any:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


def test_subclasses_that_are_no_more_than_iterables() -> None:
    """They have not called `DataLoader.__init__`, and train in plain Ignite."""
    swapped = training(WithoutParts([torch.arange(2), torch.arange(2), torch.arange(2)]), d=2)
    assert rows(swapped) == [[0, 1, 0, 1]] and len(swapped) == 1
    mode = poptorch.DataLoaderMode.Async
    with pytest.raises(LoaderError, match=r"loader_mode='Async': .* WithoutParts, which has not called"):
        Loaders(resolved(True), mode=mode).swap(WithoutParts([]))


def test_items_of_a_loader_without_batching_are_its_batches() -> None:
    """As of a data set that streams batches."""
    loader: Any = DataLoader([torch.arange(2) + start for start in (0, 2, 4, 6)], batch_size=None)
    assert rows(training(loader, d=2)) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_geometry_and_explanation() -> None:
    """The text of `print(trainer.ipu)` about a loader."""
    loaders = Loaders(resolved(True, d=2, a=3))
    loader: Any = DataLoader(Numbers(50), batch_size=2)
    assert loaders.geometry(loader) == BatchGeometry(2, device_iterations=2, gradient_accumulation=3)
    assert loaders.geometry(loaders.swap(loader)) == loaders.geometry(loader)
    explained = "50 samples / 12 per device call = 4 steps per epoch, 2 samples dropped. 8 weight updates per epoch."
    assert loaders.explain(loader).endswith(explained)
    assert loaders.geometry([torch.zeros(12)]) is None
    assert loaders.explain([torch.zeros(12)]) == "Ready batches: one item is one device call."


def test_sampler_set_epoch_still_works() -> None:
    """The user's sampler object is the one in use: calling its methods has the usual effect."""

    class Epochs(SequentialSampler):
        epoch = 0

        def __iter__(self) -> Iterator[int]:
            return iter(random.Random(self.epoch).sample(range(8), 8))

    sampler = Epochs(Numbers(8))
    swapped = training(DataLoader(Numbers(8), batch_size=2, sampler=sampler), d=2)
    first = flat(rows(swapped))
    sampler.epoch = 1
    assert flat(rows(swapped)) != first
    sampler.epoch = 0
    assert flat(rows(swapped)) == first


def test_asynchronous_modes() -> None:
    """The loader travels to PopTorch's worker process; order, length and the last item are the same."""
    loader: Any = DataLoader(Numbers(11), batch_size=2)
    mode = poptorch.DataLoaderMode.Async
    made = Loaders(resolved(True, d=2), mode=mode).swap(loader)
    assert rows(made) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    made.terminate()
    made = Loaders(resolved(False, d=2), mode=mode).swap(loader)
    assert rows(made) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
    made.terminate()


def test_a_failure_in_the_asynchronous_worker_is_explained() -> None:
    """PopTorch says only that its fetcher failed."""
    made = Loaders(resolved(True, d=2), mode=poptorch.DataLoaderMode.Async).swap(
        DataLoader(Raises(12, first=8), batch_size=2)
    )
    with pytest.raises(LoaderError, match=r"process that prepares batches .* failed"):
        for _ in made:
            pass
    made.terminate()
