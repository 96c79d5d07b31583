"""The loader whose batches are the data of one call of a wrapped model."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any, Dict, Iterable, Iterator, Optional, Sequence, Union, cast

import torch
from torch.utils.data import IterableDataset, Sampler

from ignite_ipu.emulator.data.accessor import AsynchronousDataAccessor, CombiningLoader
from ignite_ipu.emulator.data.distributed import ProcessShare, ShuffledShare
from ignite_ipu.emulator.data.worker.server import mended_workers
from ignite_ipu.emulator.enums import DataLoaderMode
from ignite_ipu.emulator.errors import python_error
from ignite_ipu.emulator.logs import logger
from ignite_ipu.emulator.options import Options
from ignite_ipu.emulator.values.structures import flatten_tensors, replace_tensors

_AnySampler = Union["Sampler[Sequence[Any]]", Iterable[Sequence[Any]]]


class DataLoader(CombiningLoader):
    """torch's loader with combined batches: one item is the input of one call of a wrapped model.

    It has `batch_size` x device iterations x gradient accumulation x input slots rows. Input slots are replicas, or
    groups of replicas that read the same input. Rows keep the order of the data set or sampler. With several processes
    (`options.Distributed`) each reads its own share of a map-style data set.

    In the asynchronous modes an `AsynchronousDataAccessor` iterates a copy of this loader in a process of its own: see
    there for batches, random order and failures. `Async` with `drop_last=False` rebatches, so that the
    tail can be delivered. In `Sync` mode worker processes are torch's, which waits for a hanging one as long as its
    argument `timeout` says (by default for ever).

    Kept from PopTorch 3.3: with a `batch_sampler`, `len` counts the sampler's batches although several make an item;
    and if the sampler has no attribute `batch_size`, `combinedBatchSize` takes it for 1. With `batch_size=None` the
    property `options` does not exist.

    Args:
        options: Options of the wrapped model. They are frozen.
        dataset: Map-style or iterable.
        batch_size: Rows that the model's `forward` sees (micro-batch). None takes the data set's items as they are.
        shuffle: Whether to draw a new order for each epoch.
        num_workers: torch's loader processes.
        drop_last: Whether rows that fill no combined batch are left out. The default is not torch's.
        persistent_workers: Keep torch's loader processes between epochs; None does if there are any.
        auto_distributed_partitioning: Whether to split the data set over the processes of `options.Distributed`.
        mode: In which process batches are made.
        async_options: Keyword arguments for the accessor.
        rebatched_worker_size: Rows that each of torch's loader processes makes at a time when rebatching; by default a
            combined batch.
        batch_sampler: Yields the indices of micro-batches, which are joined to combined batches.
        **kwargs: Passed to torch's loader.

    Raises:
        AssertionError: `options` is no `Options`; `async_options` sets `rebatched_size`; rebatching makes no sense for
            the sizes; the data set cannot be split over processes.
        Error: `batch_sampler` is combined with an argument that it excludes, or the accessor's worker failed to start.
        ZeroDivisionError: The data set is too small to be split.
        ValueError: torch refuses the combination of arguments.
    """

    def __init__(
        self,
        options: Options,
        dataset: Any,
        batch_size: Optional[int] = 1,
        shuffle: Optional[bool] = None,
        num_workers: int = 0,
        drop_last: bool = True,
        persistent_workers: Optional[bool] = None,
        auto_distributed_partitioning: bool = True,
        mode: DataLoaderMode = DataLoaderMode.Sync,
        async_options: Optional[Dict[str, Any]] = None,
        rebatched_worker_size: Optional[int] = None,
        batch_sampler: Optional[_AnySampler] = None,
        **kwargs: Any,
    ) -> None:
        if not isinstance(options, Options):
            raise AssertionError(
                f"The first argument of DataLoader must be a poptorch.Options, not {type(options).__qualname__}: "
                "DataLoader(options, dataset, ...)."
            )
        options._freeze()
        async_options = dict(async_options or {})
        if "rebatched_size" in async_options:
            raise AssertionError(
                "async_options must not manually specify 'rebatched_size': it is the combined batch size. "
                "Use mode=DataLoaderMode.AsyncRebatched and rebatched_worker_size."
            )
        if batch_sampler is not None and (batch_size != 1 or shuffle):
            raise python_error(
                f"batch_sampler is mutually exclusive with batch_size, shuffle: got batch_size={batch_size} and "
                f"shuffle={shuffle}. Let the sampler decide both."
            )
        self._options = options
        self._mode = DataLoaderMode(mode)
        self._groups_batches = batch_sampler is not None
        input_slots = options.replication_factor // options.input_group_size
        # Micro-batches of a call.
        self._join = int(options.device_iterations * input_slots * options.Training.gradient_accumulation)
        rows = batch_size if batch_sampler is None else getattr(batch_sampler, "batch_size", 1)
        self._combined_batch_size: Optional[int] = None if rows is None else self._join * rows
        self.rebatched_drop_last = drop_last
        self.batch_sampler_drop_last = drop_last
        self._share_sampler: Optional[ShuffledShare] = None
        self._rebatches = self._decide_rebatching()
        worker_batch_size = self._worker_batch_size(rebatched_worker_size)

        processes = options.Distributed.numProcesses if auto_distributed_partitioning else 1
        if not (drop_last or isinstance(dataset, IterableDataset) or self._combined_batch_size is None):
            self._warn_of_leftovers(dataset, self._combined_batch_size * processes, batch_sampler)
        if isinstance(dataset, IterableDataset) and num_workers > 1 and kwargs.get("worker_init_fn") is None:
            logger.warning(
                "The IterableDataset will return %d times each element, once per worker, because there is no "
                "worker_init_fn. Let one split the data by torch.utils.data.get_worker_info(), unless __iter__ does.",
                num_workers,
            )
        if processes > 1:
            dataset = self._share(dataset, drop_last, bool(shuffle))
            if shuffle and kwargs.get("sampler") is None:
                kwargs["sampler"] = self._share_sampler = ShuffledShare(dataset, options.random_seed)
                shuffle = False

        super().__init__(
            dataset,
            batch_size=1 if batch_sampler is not None else worker_batch_size,
            shuffle=shuffle,
            num_workers=num_workers,
            # Who rebatches drops the last rows, or all of them would go that fill no batch in their worker.
            drop_last=False if self._rebatches or batch_sampler is not None else drop_last,
            persistent_workers=num_workers > 0 if persistent_workers is None else persistent_workers,
            batch_sampler=cast("Any", batch_sampler),
            **kwargs,
        )
        if self._mode != DataLoaderMode.Sync:
            rebatched_size = self._combined_batch_size if self._rebatches else None
            self._accessor = AsynchronousDataAccessor(self, rebatched_size=rebatched_size, **async_options)
        elif async_options:
            logger.warning("async_options have no effect on a DataLoader with mode=DataLoaderMode.Sync.")

    @property
    def combinedBatchSize(self) -> Optional[int]:
        """Rows of one item, which a call of the model consumes; None with `batch_size=None`."""
        return self._combined_batch_size

    @property
    def options(self) -> Options:
        """The options the loader was made with."""
        if self._combined_batch_size is None:
            raise AttributeError("A DataLoader with batch_size=None has no attribute 'options' (as in PopTorch 3.3).")
        return self._options

    def __len__(self) -> int:
        """Return the items of an epoch; with a batch sampler, its batches."""
        if not self._rebatches or self._groups_batches:
            return super().__len__()
        size = self._combined_batch_size
        assert size is not None
        rows = len(self.dataset if isinstance(self.dataset, IterableDataset) else self.sampler)  # type: ignore[arg-type]
        return rows // size if self.rebatched_drop_last else -(-rows // size)

    def __iter__(self) -> Any:
        """Begin an epoch."""
        if self._accessor is not None:
            return iter(self._accessor)
        if self._share_sampler is not None:
            self._share_sampler.begin_epoch()
        batches: Iterator[Any] = super().__iter__()
        if self._groups_batches and self._join > 1 and not self._rebatches:
            return _join_groups(batches, self._join, self.batch_sampler_drop_last)
        return batches

    def terminate(self) -> None:
        """End the worker of an asynchronous mode; iterating afterwards is an error. `Sync` has nothing to end."""
        if self._accessor is not None:
            self._accessor.terminate()

    def __del__(self) -> None:
        if self._accessor is not None:  # the copy in a worker has none
            with contextlib.suppress(Exception):
                self.terminate()

    def _get_iterator(self) -> Any:
        with mended_workers(self):
            return super()._get_iterator()

    def _decide_rebatching(self) -> bool:
        size = self._combined_batch_size
        if self._mode != DataLoaderMode.AsyncRebatched:
            needs_tail = not self.rebatched_drop_last and not self._groups_batches
            return self._mode == DataLoaderMode.Async and needs_tail and size is not None and size > 1
        if size is None:
            raise AssertionError(
                "Rebatching with batch_size=None is impossible: there is no combined batch size to cut to."
            )
        if size <= 1:
            raise AssertionError(
                f"The combined batch size must be None or greater than 1 to rebatch, but it is {size}. "
                "Use mode=DataLoaderMode.Async."
            )
        return True

    def _worker_batch_size(self, rebatched_worker_size: Optional[int]) -> Optional[int]:
        size = self._combined_batch_size
        if rebatched_worker_size is None:
            return size
        if not self._rebatches or size is None:
            logger.warning("rebatched_worker_size has no effect: the DataLoader does not rebatch in this mode.")
            return size
        if rebatched_worker_size > size:
            raise AssertionError(
                f"rebatched_worker_size ({rebatched_worker_size}) must be <= to the combined batch size ({size})."
            )
        return rebatched_worker_size

    def _share(self, dataset: Any, drop_last: bool, shuffle: bool) -> ProcessShare:
        way_out = "Split the data yourself and pass auto_distributed_partitioning=False."
        if self._groups_batches:
            raise python_error(f"batch_sampler is mutually exclusive with auto_distributed_partitioning. {way_out}")
        if isinstance(dataset, IterableDataset):
            raise AssertionError(f"auto_distributed_partitioning is not supported for IterableDataset. {way_out}")
        if self._combined_batch_size is None:
            raise AssertionError(f"batch_size=None not allowed with auto_distributed_partitioning. {way_out}")
        if shuffle and not self._options.exists("random_seed"):
            raise AssertionError(
                "To shuffle in several processes you must set the same options.randomSeed(...) in all of them, or "
                "their shares would overlap."
            )
        one = self._options.Distributed
        size = self._combined_batch_size
        return ProcessShare(dataset, size, drop_last, one.processId, one.numProcesses, shuffled=shuffle)

    def _warn_of_leftovers(self, dataset: Any, size: int, batch_sampler: Any) -> None:
        """Warn if the last item of all processes' `size` rows, or of the sampler's batches, will not be whole."""
        advice = "The last item will be shorter, and a compiled model refuses it: set drop_last=True, or pad."
        if batch_sampler is None:
            if len(dataset) % size:
                logger.warning(
                    "The number of elements in the dataset (%d) is not divisible by the number of elements processed "
                    "by all processes per step (%d). %s",
                    len(dataset),
                    size,
                    advice,
                )
        elif not hasattr(batch_sampler, "__len__"):
            what = "The batch_sampler has no length, so its last batches may not fill an item (%d make one). %s"
            logger.warning(what, self._join, advice)
        elif len(batch_sampler) % self._join:
            what = (
                "The length of the batch_sampler (%d) is not divisible by the number of its batches in an item (%d). %s"
            )
            logger.warning(what, len(batch_sampler), self._join, advice)


def _join_groups(batches: Iterator[Any], size: int, drop_last: bool) -> Iterator[Any]:
    """Yield every `size` consecutive batches as one, concatenated; `drop_last` leaves an incomplete group out."""
    while True:
        group = list(itertools.islice(batches, size))
        if len(group) < size and (drop_last or not group):
            return
        parts = [flatten_tensors(batch) for batch in group]
        counts = sorted(set(map(len, parts)))
        if len(counts) > 1:
            raise ValueError(f"Batches with {counts} tensors cannot be joined: collate_fn must always build the same.")
        yield group[0] if len(group) == 1 else replace_tensors(group[0], combine_batch_tensors_gen(parts))


def combine_batch_tensors_gen(batches: Sequence[Sequence[torch.Tensor]]) -> Iterator[torch.Tensor]:
    """Yield the first tensors of all batches, concatenated, then the second ones, and so on."""
    for tensors in zip(*batches):
        yield torch.cat(tensors)
