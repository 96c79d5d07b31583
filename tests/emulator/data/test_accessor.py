"""Items of an asynchronous accessor: the same items as synchronous loading, in reused slots."""

from __future__ import annotations

import dataclasses
import math
import pickle
import time
from collections import namedtuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, IterableDataset, SequentialSampler, TensorDataset, get_worker_info

from ignite_ipu.emulator.data import AsynchronousDataAccessor, DataLoader, set_poisoning
from ignite_ipu.emulator.data.worker.memory import poison_value
from ignite_ipu.emulator.enums import DataLoaderMode, SharingStrategy
from ignite_ipu.emulator.errors import Error
from ignite_ipu.emulator.options import Options
from ignite_ipu.emulator.values.structures import ICustomArgParser, registerCustomArgParser

FORK = {"sharing_strategy": SharingStrategy.Fork}
Async, AsyncRebatched = DataLoaderMode.Async, DataLoaderMode.AsyncRebatched


@pytest.fixture
def accessor():
    """Make accessors that end with the test."""
    made = []

    def make(dataset, **arguments):
        made.append(AsynchronousDataAccessor(dataset, **{**FORK, **arguments}))
        return made[-1]

    yield make
    for one in made:
        one.terminate()


@pytest.fixture
def loader():
    """Make asynchronous loaders that end with the test."""
    made = []

    def make(dataset, device_iterations=1, mode=Async, async_options=None, **arguments):
        opts = Options().deviceIterations(device_iterations)
        made.append(DataLoader(opts, dataset, mode=mode, async_options={**FORK, **(async_options or {})}, **arguments))
        return made[-1]

    yield make
    for one in made:
        one.terminate()


@pytest.fixture
def no_poison():
    before = set_poisoning(False)
    yield
    set_poisoning(before)


def numbers(n):
    return TensorDataset(torch.arange(n))


def counting(n):
    return [torch.full((2,), float(i)) for i in range(n)]


def values(accessor):
    return [item[0].item() for item in accessor]


def rows(loader):
    return [item[0].tolist() for item in loader]


# -- order


@settings(max_examples=25)
@given(
    n=st.integers(2, 30),
    b=st.integers(1, 3),
    d=st.integers(1, 3),
    drop=...,
    rebatched=...,
    seed=st.one_of(st.none(), st.integers(0, 9)),
)
def test_items_and_their_order_are_those_of_synchronous_loading(n: int, b, d, drop: bool, rebatched: bool, seed):
    size = b * d
    if (n < size and drop) or (rebatched and size == 1):
        return
    arguments = {"batch_size": b, "drop_last": drop, "shuffle": seed is not None}
    opts = Options().deviceIterations(d)
    torch.manual_seed(seed or 0)
    expected = rows(DataLoader(opts, numbers(n), **arguments))
    torch.manual_seed(seed or 0)
    mode = AsyncRebatched if rebatched else Async
    loader = DataLoader(opts, numbers(n), mode=mode, async_options=FORK, **arguments)
    assert rows(loader) == expected
    assert len(loader) == len(expected)
    loader.terminate()


@pytest.mark.parametrize("worker_size", [1, 2, 3, 4])
def test_rebatching_loses_nothing_that_several_workers_read(loader, worker_size):
    class Split(IterableDataset):
        def __iter__(self):
            info = get_worker_info()
            return iter(torch.arange(11)[info.id :: info.num_workers])

    rebatched = loader(
        Split(), mode=AsyncRebatched, batch_size=4, num_workers=2, rebatched_worker_size=worker_size, drop_last=False
    )
    sizes, seen = [], []
    for item in rebatched:
        sizes.append(len(item))
        seen += item.tolist()
    assert sizes == [4, 4, 3] and sorted(seen) == list(range(11))


@given(sizes=st.lists(st.integers(0, 7), min_size=1, max_size=6), size=st.integers(2, 5))
@settings(max_examples=25)
def test_pieces_are_cut_and_joined_in_order_and_the_tail_is_dropped(sizes, size):
    total = sum(sizes)
    if total < size:
        return
    pieces = torch.arange(total).split(sizes)
    accessor = AsynchronousDataAccessor([(p, p * 2) for p in pieces], rebatched_size=size, **FORK)
    expected = torch.arange(total)[: total // size * size].view(-1, size).tolist()
    assert [(x.tolist(), y.tolist()) for x, y in accessor] == [(e, [2 * v for v in e]) for e in expected]
    accessor.terminate()


@pytest.mark.parametrize("drop_last", [True, False])
def test_groups_of_a_batch_sampler(loader, drop_last):
    sampler = BatchSampler(SequentialSampler(range(7)), 2, drop_last=False)
    made = loader(numbers(7), device_iterations=2, batch_sampler=sampler, drop_last=drop_last, num_workers=1)
    sync = DataLoader(Options().deviceIterations(2), numbers(7), batch_sampler=sampler, drop_last=drop_last)
    # The last group is complete: it has two batches, of which one is short.
    assert rows(made) == rows(sync) == [[0, 1, 2, 3], [4, 5, 6]]


# -- epochs


@pytest.mark.parametrize("load_indefinitely", [True, False])
@pytest.mark.parametrize("early_preload", [True, False])
@pytest.mark.parametrize("buffer_size", [1, 2, 5])
def test_every_epoch_starts_from_the_beginning(accessor, load_indefinitely, early_preload, buffer_size):
    reader = accessor(
        counting(4), load_indefinitely=load_indefinitely, early_preload=early_preload, buffer_size=buffer_size
    )
    for _ in range(3):
        assert values(reader) == [0, 1, 2, 3]
        with pytest.raises(StopIteration):
            next(reader)
    iterator = iter(reader)
    assert [next(iterator)[0].item() for _ in range(2)] == [0, 1]
    assert values(reader) == [0, 1, 2, 3], "also in the middle of one"
    assert iter(reader) is iter(reader)
    assert next(reader)[0].item() == 0
    assert len(reader) == 4


def test_next_works_without_iter(accessor):
    assert next(accessor(counting(2)))[0].item() == 0


def test_a_generator_has_one_epoch_and_then_empty_ones(accessor):
    reader = accessor(iter(counting(3)))
    assert [values(reader) for _ in range(3)] == [[0, 1, 2], [], []]


class Log:
    """A data set that counts the items taken from it."""

    def __init__(self, n):
        self.n, self.taken = n, torch.zeros(1, dtype=torch.int64).share_memory_()

    def __iter__(self):
        for i in range(self.n):
            self.taken += 1
            yield torch.tensor([i])


def settled(log, expected):
    """Wait until the worker has taken `expected` items, and then whether it takes more."""
    import time

    deadline = time.monotonic() + 60
    while log.taken.item() < expected and time.monotonic() < deadline:
        time.sleep(0.002)
    time.sleep(0.03)
    return log.taken.item()


def test_how_far_the_worker_loads_ahead(accessor):
    log = Log(9)
    reader = accessor(log, buffer_size=3)
    assert settled(log, 1) == 1, "only the first item before iter"
    iter(reader)
    # The ring is full and one more item is in the worker's hands.
    assert settled(log, 4) == 4
    log = Log(9)
    accessor(log, buffer_size=3, early_preload=True)
    assert settled(log, 4) == 4


@pytest.mark.parametrize(("load_indefinitely", "taken"), [(True, 4), (False, 2)])
def test_the_next_epoch_is_loaded_in_advance_only_indefinitely(accessor, load_indefinitely, taken):
    log = Log(2)
    reader = accessor(log, load_indefinitely=load_indefinitely, buffer_size=3)
    assert [x.item() for x in reader] == [0, 1]
    assert settled(log, taken) == taken


def test_looking_without_a_pause(accessor):
    assert values(accessor(counting(20), miss_sleep_time_in_ms=0, buffer_size=1)) == list(range(20))


# -- slots


def test_an_item_is_a_slot_that_is_reused(accessor, no_poison):
    reader = accessor(counting(7), buffer_size=3, load_indefinitely=False)
    items = list(reader)
    assert len({item.data_ptr() for item in items}) == 3
    assert [item[0].item() for item in items] == [6, 4, 5, 6, 4, 5, 6]
    assert len({id(item) for item in items}) == 7


def test_a_stale_item_is_poisoned_as_soon_as_the_next_is_asked_for(accessor):
    dtypes = [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64]
    data = [[torch.full((2,), i).to(dtype) for dtype in dtypes] for i in range(4)]
    reader = accessor(data, buffer_size=2)
    previous = None
    for index, item in enumerate(reader):
        for tensor, original in zip(item, data[index]):
            assert torch.equal(tensor, original)
        for tensor in previous or []:
            expected = torch.full((2,), poison_value(tensor.dtype), dtype=tensor.dtype)
            torch.testing.assert_close(tensor, expected, equal_nan=True, rtol=0, atol=0)
        previous = item
    for tensor, original in zip(previous, data[-1]):
        assert torch.equal(tensor, original), "the last item can be read after the loop"
    next(iter(reader))
    assert previous[0].isnan().all(), "and is stale when the next pass has begun"
    assert previous[3][0] == torch.iinfo(torch.int64).min and previous[4][0] == 255


@pytest.mark.parametrize("buffer_size", [1, 3])
@pytest.mark.parametrize("load_indefinitely", [False, True])
def test_the_last_item_of_a_pass_can_be_read_until_the_next_pass_begins(accessor, buffer_size, load_indefinitely):
    """However far ahead the worker loads."""
    reader = accessor(counting(5), buffer_size=buffer_size, load_indefinitely=load_indefinitely)
    for _ in range(2):
        last = list(reader)[-1]
        with pytest.raises(StopIteration):
            next(reader)
        time.sleep(0.05)
        assert last.tolist() == [4, 4]


def test_a_clone_lives_on_and_so_does_the_last_item_of_a_terminated_accessor(accessor):
    reader = accessor(counting(3))
    kept = next(reader).clone()
    last = next(reader)
    reader.terminate()
    del reader
    assert kept.tolist() == [0, 0] and last.tolist() == [1, 1]


def test_what_is_done_to_an_item_does_not_come_back(accessor):
    reader = accessor(counting(4), buffer_size=1)
    for index, item in enumerate(reader):
        assert item.tolist() == [index] * 2 and not item.requires_grad
        item.requires_grad_()
        item.data.mul_(0)


# -- structures

Pair = namedtuple("Pair", "x y")


@dataclasses.dataclass
class Graph:
    nodes: torch.Tensor
    edges: torch.Tensor
    name: str


class GraphParser(ICustomArgParser):
    def yieldTensors(self, struct):
        yield struct.nodes
        yield struct.edges

    def reconstruct(self, original_structure, tensor_iterator):
        return Graph(next(tensor_iterator), next(tensor_iterator), original_structure.name)


@pytest.mark.parametrize("kind", [tuple, list, lambda pair: Pair(*pair)])
def test_sequences_come_back_as_lists(accessor, kind):
    (item,) = list(accessor([kind((torch.tensor(1), torch.ones(2, 0)))], load_indefinitely=False))
    assert type(item) is list and item[0].shape == () and item[1].shape == (2, 0)


def test_dictionaries_keep_their_keys_in_whatever_order_they_come(accessor):
    data = [{"x": torch.tensor([1]), "y": torch.tensor([2.0])}, {"y": torch.tensor([4.0]), "x": torch.tensor([3])}]
    seen = [{key: value.item() for key, value in item.items()} for item in accessor(data)]
    assert seen == [{"x": 1, "y": 2.0}, {"x": 3, "y": 4.0}]


@pytest.fixture
def graphs_are_registered():
    registerCustomArgParser(Graph, GraphParser())
    yield
    registerCustomArgParser(Graph, None)


def test_a_registered_type_keeps_what_is_no_tensor(graphs_are_registered, accessor):
    data = [Graph(torch.tensor([i]), torch.tensor([[i * 2]]), f"graph {i}") for i in range(3)]
    seen = [(g.nodes.item(), g.edges.item(), g.name) for g in accessor(data)]
    assert seen == [(0, 0, "graph 0"), (1, 2, "graph 1"), (2, 4, "graph 2")]


def test_large_descriptions_fit(accessor):
    item = {f"a rather long name for feature number {i}": torch.tensor([i]) for i in range(2000)}
    (copy,) = list(accessor([item], load_indefinitely=False, buffer_size=1))
    assert list(copy) == list(item)


@pytest.mark.parametrize(
    "item", ["text", 3, (torch.ones(1), 2), [torch.ones(1), [torch.ones(1)]], {"x": "y"}, None, object()]
)
def test_items_of_anything_but_tensors_are_refused(item):
    with pytest.raises(Error, match=r"(?s)worker thread failed to start.*is not a torch tensor"):
        AsynchronousDataAccessor([item], **FORK)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (torch.ones(3), r"shape \(3,\).*All items must match"),
        (torch.ones(1, 2), r"shape \(1, 2\).*All items must match"),
        (torch.ones(0), r"shape \(0,\).*All items must match"),
        ([torch.ones(2)], "is not a torch tensor"),
        (None, "is not a torch tensor"),
    ],
)
def test_an_item_unlike_the_first_is_refused(accessor, second, message):
    reader = accessor([torch.ones(2), second])
    with pytest.raises(AssertionError, match=f"(?s)An error occurred in the data fetcher.*{message}"):
        list(reader)


BUILDS = [
    (lambda x, y: (x, y), lambda item: item),
    (lambda x, y: {"x": x, "y": y}, lambda item: item.values()),
    (lambda x, y: Graph(x, y, "graph"), lambda item: (item.nodes, item.edges)),
]


@pytest.mark.parametrize("rebatched", [None, 4])
@pytest.mark.parametrize(("build", "parts"), BUILDS, ids=["tuple", "dictionary", "registered type"])
def test_later_items_are_copied_into_the_layout_of_the_first(graphs_are_registered, accessor, build, parts, rebatched):
    """Another type is converted to the first item's, and a shape that broadcasts is repeated."""
    first = torch.zeros(2, 3), torch.tensor([0, 1])
    second = torch.full((2, 1), 7, dtype=torch.int64), torch.tensor([2.9, -3.9], dtype=torch.float64)
    expected = torch.full((2, 3), 7.0), torch.tensor([2, -3])
    reader = accessor([build(*first), build(*second)], rebatched_size=rebatched)
    last = [[part.clone() for part in parts(item)] for item in reader][-1]
    for part, wanted in zip(last, expected):
        assert part.dtype == wanted.dtype and torch.equal(part[-2:], wanted)


def test_a_loader_takes_a_last_batch_that_its_collate_function_pads_with_floats(loader):
    """The labels stay integers."""

    def padded(samples):
        rows = torch.stack([sample[0] for sample in samples])
        return rows if len(rows) == 2 else torch.cat([rows, torch.full((1,), -100.0)])

    found = loader(numbers(3), batch_sampler=[[0, 1], [2]], collate_fn=padded)
    assert [(item.dtype, item.tolist()) for item in found] == [(torch.int64, [0, 1]), (torch.int64, [2, -100])]


@pytest.mark.parametrize("second", [{"x": torch.ones(1)}, {"x": torch.ones(1), "z": torch.ones(1)}, torch.ones(1)])
def test_a_dictionary_with_other_keys_is_refused(accessor, second):
    reader = accessor([{"x": torch.ones(1), "y": torch.ones(1)}, second])
    with pytest.raises(AssertionError, match="same keys"):
        list(reader)


@pytest.mark.parametrize(
    "item", [(torch.ones(2), torch.ones(3)), torch.tensor(1.0)], ids=["unequal", "no first dimension"]
)
def test_what_has_no_common_first_dimension_cannot_be_rebatched(item):
    with pytest.raises(Error, match="same first dimension"):
        AsynchronousDataAccessor([item], rebatched_size=2, **FORK)


def test_only_the_last_item_may_be_short(loader):
    with pytest.raises(AssertionError, match="only the last of an epoch"):
        list(loader(numbers(5), batch_sampler=[[0, 1], [2], [3, 4]], drop_last=False))


# -- arguments


def test_length_of_a_rebatching_accessor(accessor):
    pieces = list(torch.arange(12).split(3))
    assert len(accessor(pieces, rebatched_size=5)) == 2
    torch_loader = torch.utils.data.DataLoader(numbers(12), batch_size=4)
    assert len(accessor(torch_loader, rebatched_size=6)) == 2
    assert accessor(pieces, rebatched_size=5).rebatched_size == 5


def test_over_a_loader_of_its_own(accessor):
    sync = DataLoader(Options(), numbers(7), batch_size=2, drop_last=False)
    assert rows(accessor(sync, rebatched_size=3)) == [[0, 1, 2], [3, 4, 5], [6]]
    whole = DataLoader(Options(), numbers(7), batch_size=2)
    assert rows(accessor(whole)) == [[0, 1], [2, 3], [4, 5]]


def test_refused_arguments(loader):
    with pytest.raises(Error, match="already uses an AsynchronousDataAccessor"):
        AsynchronousDataAccessor(loader(numbers(4)), **FORK)
    tail = DataLoader(Options(), numbers(7), batch_size=2, drop_last=False)
    with pytest.raises(AssertionError, match="works if 'rebatched_size' is specified"):
        AsynchronousDataAccessor(tail, **FORK)
    with pytest.raises(AssertionError, match="must be None or greater than 1"):
        AsynchronousDataAccessor(counting(2), rebatched_size=1, **FORK)
    with pytest.raises(ValueError, match="buffer_size is 0"):
        AsynchronousDataAccessor(counting(2), buffer_size=0, **FORK)
    with pytest.raises(ValueError, match="miss_sleep_time_in_ms is -1"):
        AsynchronousDataAccessor(counting(2), miss_sleep_time_in_ms=-1, **FORK)
    with pytest.raises(ValueError, match="SharingStrategy"):
        AsynchronousDataAccessor(counting(2), sharing_strategy=9)
    with pytest.raises(TypeError, match="unexpected keyword"):
        loader(numbers(4), async_options={"nonsense": 1})


def test_a_rebatching_loader_of_too_few_samples_yields_nothing(loader):
    """PopTorch makes it; its worker has items, which never fill a batch."""
    few = loader(numbers(3), batch_size=8, mode=DataLoaderMode.AsyncRebatched, rebatched_worker_size=4)
    for _ in range(2):
        assert list(few) == []


def test_an_empty_data_set_fails_to_start():
    for dataset in ([], torch.utils.data.DataLoader(numbers(3), batch_size=4, drop_last=True)):
        with pytest.raises(Error, match=r"(?s)worker thread failed to start.*The Dataset is empty"):
            AsynchronousDataAccessor(dataset, **FORK)


def test_it_cannot_be_copied(accessor):
    with pytest.raises(TypeError, match="owns a process"):
        pickle.dumps(accessor(counting(1)))


# -- sharing strategies


@pytest.mark.parametrize(
    "strategy", [SharingStrategy.SharedMemory, SharingStrategy.FileSystem, SharingStrategy.ForkServer]
)
def test_every_strategy_delivers_the_same(loader, tmp_path, monkeypatch, strategy):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    torch.manual_seed(5)
    expected = rows(torch.utils.data.DataLoader(numbers(9), batch_size=2, shuffle=True))
    torch.manual_seed(5)
    options = {"sharing_strategy": strategy, "load_indefinitely": strategy != SharingStrategy.FileSystem}
    made = loader(numbers(9), batch_size=2, shuffle=True, drop_last=False, async_options=options)
    assert rows(made) == expected and len(made) == math.ceil(9 / 2)
    assert not list(tmp_path.glob("ignite_ipu-data-*"))


@pytest.mark.parametrize(
    "strategy", [SharingStrategy.SharedMemory, SharingStrategy.FileSystem, SharingStrategy.ForkServer]
)
def test_a_data_set_that_does_not_pickle_needs_fork(tmp_path, monkeypatch, strategy):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    class Local:
        def __iter__(self):
            return iter(counting(2))

    with pytest.raises((AttributeError, pickle.PicklingError), match="local object"):
        AsynchronousDataAccessor(Local(), sharing_strategy=strategy)
    assert not list(tmp_path.iterdir())
