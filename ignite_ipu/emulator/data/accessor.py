"""A data set iterated in a process of its own, ahead of its reader."""

from __future__ import annotations

import contextlib
import enum
import os
import weakref
from typing import Any, Callable, Iterable, List, NoReturn, Optional

import torch

from ignite_ipu.emulator.data.strictness import poisons_stale_batches
from ignite_ipu.emulator.data.worker.item import ItemStructure
from ignite_ipu.emulator.data.worker.memory import Ring
from ignite_ipu.emulator.data.worker.process import WorkerFailed, WorkerProcess, pickled_parsers
from ignite_ipu.emulator.data.worker.seeding import CallerSeed, RandomState
from ignite_ipu.emulator.data.worker.worker import Message, MessageKind, WorkerSettings
from ignite_ipu.emulator.enums import DataLoaderMode, SharingStrategy
from ignite_ipu.emulator.errors import python_error

_NO_EPOCH = -1
_Progress = enum.Enum("_Progress", "IDLE ASKED BEGUN OVER")  # of an epoch


class CombiningLoader(torch.utils.data.DataLoader):  # type: ignore[type-arg]
    """torch's loader, with the methods that an accessor needs for combined batches."""

    # Value for __del__ if the constructor fails, and for the copy in a worker process.
    _accessor: Optional[AsynchronousDataAccessor] = None
    _mode: DataLoaderMode
    _groups_batches: bool
    _combined_batch_size: Optional[int]
    rebatched_drop_last: bool


class AsynchronousDataAccessor:
    """Loads the items of a data set in another process and shares them through a ring of slots.

    The first item fixes the layout of the slots. Later items are copied into it as `copy_` does: another type is
    converted to the first item's without a word, and a shape that broadcasts to the first one's is repeated.

    An item's tensors *are* a slot: they hold its values until the next item is requested. Clone tensors that must live
    longer. An item that has become stale reads as NaN (integers: the extreme of their type) until yet another one is
    requested, so that code relying on it fails visibly. The last item of an epoch becomes stale when the next epoch
    begins. `IGNITE_IPU_POISON_STALE_BATCHES=0` or `ignite_ipu.emulator.data.set_poisoning(False)`, before the accessor
    is made, turns that off; then the slot just takes the values of a later item, as in PopTorch.

    The worker begins with a copy of this process's random state. If a torch `DataLoader`'s generator (torch's own
    unless the loader was given one) is seeded before a new epoch, the worker receives the new state. Other changes to
    the data set or its sampler stay unseen: the worker has copies.

    Args:
        dataset: Anything iterable, or a `DataLoader`. Its items are tensors, flat lists, tuples (they come back as
            lists) or dictionaries of tensors, or values of a type with a registered parser.
        buffer_size: Slots of the ring, 1 or more.
        miss_sleep_time_in_ms: How long PopTorch's worker sleeps when it finds the ring full. Here it waits until a slot
            is given back, and costs nothing.
        load_indefinitely: Begin the next epoch before it is requested.
        early_preload: Fill the ring at once instead of at the first `iter`. The first item is loaded in any case.
        sharing_strategy: How the worker is made: `Fork` inherits the data set; the others pickle it.
        rebatched_size: Cut and join items to this many rows. Only a `DataLoader` with `drop_last=False` keeps a tail.

    Raises:
        Error: The worker failed before it had a first item, or `dataset` already loads asynchronously.
        AssertionError: `rebatched_size` is below 2, or needed for the tail of `dataset` and not given.
        ValueError: `buffer_size` is below 1, or `miss_sleep_time_in_ms` is negative.
    """

    rebatched_size: Optional[int]

    # Value for __del__ if the constructor fails.
    _worker: Optional[WorkerProcess] = None
    _slot: Optional[int] = None
    _last: Optional[int] = None  # of the item before, until another one comes

    def __init__(
        self,
        dataset: Iterable[Any],
        buffer_size: int = 3,
        miss_sleep_time_in_ms: float = 0.1,
        load_indefinitely: bool = True,
        early_preload: bool = False,
        sharing_strategy: SharingStrategy = SharingStrategy.ForkServer,
        rebatched_size: Optional[int] = None,
    ) -> None:
        if buffer_size < 1:
            raise ValueError(f"buffer_size is {buffer_size}; the ring needs at least 1 slot, and 2 to load ahead.")
        if not miss_sleep_time_in_ms >= 0:
            raise ValueError(f"miss_sleep_time_in_ms is {miss_sleep_time_in_ms}; it must be 0 or more.")
        if rebatched_size is not None and rebatched_size <= 1:
            raise AssertionError(f"rebatched_size must be None or greater than 1, but it is {rebatched_size}.")
        strategy = SharingStrategy(sharing_strategy)
        self.rebatched_size = rebatched_size
        keep_tail = self._check_loader(dataset)
        self._owner = os.getpid()
        self._poisons = poisons_stale_batches()
        self._unusable = ""
        self._progress = _Progress.IDLE
        # Messages of epochs up to the first number are not wanted; the second is the epoch being read.
        self._epochs_above = self._epoch = _NO_EPOCH
        self._received = 0
        # All processes of a distributed run must go through the same permutations, so none of them may begin one anew.
        self._seed = CallerSeed(dataset, has_own_order=getattr(dataset, "_share_sampler", None) is not None)
        settings = WorkerSettings(
            buffer_size=buffer_size,
            # One more than is in use at any time, so that the latest stale item stays poisoned and is not yet reused.
            slots=buffer_size + self._poisons,
            load_indefinitely=bool(load_indefinitely),
            early_preload=bool(early_preload),
            rebatched_size=rebatched_size,
            keep_tail=keep_tail,
            random_state=None if strategy == SharingStrategy.Fork else RandomState.capture(),
            parsers=pickled_parsers(strategy),
        )
        try:
            self._worker = worker = WorkerProcess(dataset, settings, strategy)
            self._structure: ItemStructure
            self._structure, specs, self._rows = worker.receive().body
            self._ring = Ring(specs, settings.slots, worker.memory)
            self._first: Optional[Message] = worker.receive()
        except WorkerFailed as failure:
            raise python_error(f"AsynchronousDataAccessor: the worker thread failed to start: {failure}") from None
        except BaseException:
            if self._worker is not None:
                self._worker.stop()
            raise

    def __iter__(self) -> AsynchronousDataAccessor:
        """Begin an epoch, also in the middle of one; nothing happens if one has begun but no item of it was taken."""
        worker = self._usable_worker()
        state = self._seed.new_state()
        is_new = self._progress != _Progress.ASKED
        if is_new or state:
            above = self._epoch if is_new else self._epochs_above
            # Items that the worker has begun in advance have the order of another seed.
            self._epochs_above = above + 1 if state else above
            worker.send(Message(MessageKind.ITERATE, self._epochs_above, body=state))
        self._progress = _Progress.ASKED
        return self

    def __next__(self) -> Any:
        """Return the next item; the previous one's tensors are no longer its own."""
        worker = self._usable_worker()
        if self._progress == _Progress.IDLE:
            iter(self)
        if self._slot is not None:
            # The last item of an epoch can be read until the next one begins: only another item makes it stale.
            self._last, self._slot = self._slot, None
            worker.send(Message(MessageKind.FREED, self._received))
        if self._progress == _Progress.OVER:
            raise StopIteration
        while True:
            try:
                message, self._first = self._first or worker.receive(), None
            except WorkerFailed as failure:
                self._unusable = f"An error occurred in the data fetcher: {failure}"
                raise AssertionError(self._unusable) from None
            is_wanted = message.number > self._epochs_above
            if is_wanted:
                self._epoch = message.number
            if message.kind == MessageKind.ITEM:
                if self._poisons and self._last is not None:
                    self._ring.poison(self._last)
                self._last = None
                slot = self._received % len(self._ring.slots)
                self._received += 1
                if is_wanted:
                    self._progress, self._slot = _Progress.BEGUN, slot
                    # New tensor objects each time: attributes that a caller sets on one (such as requires_grad) must
                    # not come back.
                    tensors: List[torch.Tensor] = [tensor.detach() for tensor in self._ring.slots[slot]]
                    if message.rows >= 0:
                        tensors = [tensor[: message.rows] for tensor in tensors]
                    return self._structure.rebuild(tensors, message.body)
                worker.send(Message(MessageKind.FREED, self._received))
            elif is_wanted:
                self._progress = _Progress.OVER
                raise StopIteration

    def __len__(self) -> int:
        """Return the items of an epoch: the data set's, or as many whole ones as rebatching makes of them."""
        dataset = self._dataset()
        length = len(dataset)  # type: ignore[arg-type]
        if self.rebatched_size is None or self._is_owned:
            return length
        batch_size = getattr(dataset, "batch_size", None)
        rows = batch_size if isinstance(batch_size, int) else self._rows
        return length * rows // self.rebatched_size

    def terminate(self) -> None:
        """End the worker: it gets 10 seconds to end, is then interrupted, and killed after 10 more. Once is enough.

        The last item stays valid; asking for another is an error.
        """
        if self._worker is not None and os.getpid() == self._owner:
            self._unusable = self._unusable or (
                "This AsynchronousDataAccessor has been terminated. Create a new one to go on."
            )
            self._worker.stop()

    def __del__(self) -> None:
        # At interpreter exit parts of this may be gone, but then the worker is, too.
        with contextlib.suppress(Exception):
            self.terminate()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "An AsynchronousDataAccessor owns a process, so it cannot be copied or pickled; create another."
        )

    def _check_loader(self, dataset: Iterable[Any]) -> bool:
        """Remember the data set; return whether its items may end with a shorter one."""
        if not isinstance(dataset, CombiningLoader):
            self._is_owned = False
            self._dataset: Callable[[], Iterable[Any]] = lambda: dataset
            return False
        if dataset._accessor is not None:
            raise python_error(
                "The DataLoader already uses an AsynchronousDataAccessor (its mode is "
                f"{dataset._mode!r}). Iterate the loader itself, or create it with mode=DataLoaderMode.Sync."
            )
        size = dataset._combined_batch_size
        keeps_tail = not dataset.rebatched_drop_last
        if keeps_tail and self.rebatched_size is None and not dataset._groups_batches and (size or 0) > 1:
            raise AssertionError(
                f"A DataLoader with drop_last=False and a combined batch size of {size} only works if 'rebatched_size' "
                "is specified. Pass rebatched_size=loader.combinedBatchSize, or create the loader with drop_last=True."
            )
        self._is_owned = dataset._mode != DataLoaderMode.Sync
        # A loader and its own accessor must not keep each other alive.
        self._dataset = weakref.ref(dataset) if self._is_owned else lambda: dataset  # type: ignore[assignment]
        # A complete group of sampler batches is delivered with any number of rows, as in Sync mode.
        return keeps_tail or (dataset._groups_batches and self.rebatched_size is None)

    def _usable_worker(self) -> WorkerProcess:
        if self._unusable:
            raise AssertionError(self._unusable)
        if os.getpid() != self._owner:
            raise RuntimeError(
                f"This AsynchronousDataAccessor belongs to process {self._owner}, not to this fork of it "
                f"({os.getpid()}). Create one here."
            )
        assert self._worker is not None
        return self._worker
