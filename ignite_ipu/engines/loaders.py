"""A `torch.utils.data.DataLoader` becomes the `poptorch.DataLoader` that feeds a compiled model.

The `batch_size` of the user's loader is the micro-batch, as it is for PopTorch. One item of the new loader is what one
device call consumes: as many consecutive micro-batches as the options say, from the same data set in the same order.
Training drops what does not fill a call, and says how many samples that are. Evaluation keeps it: the last item is
shorter, so that the engine can fill it up for the device and count every sample once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import traceback
import weakref
from typing import Any, Dict, Iterator, List, Optional, Sized

from torch.utils.data import DataLoader, IterableDataset

from ignite_ipu import backend
from ignite_ipu.engines.resume.position import RewindableSampler
from ignite_ipu.errors import LoaderError, RowsError, logger
from ignite_ipu.poptorch_types import DataLoader as PopTorchLoader
from ignite_ipu.poptorch_types import Options
from ignite_ipu.program.geometry import BatchGeometry
from ignite_ipu.program.tensors.rows import row_count

_KEPT = (
    *("num_workers", "collate_fn", "timeout", "worker_init_fn", "multiprocessing_context", "generator"),
    "persistent_workers",
)
_POPTORCH_LOGGER = "poptorch::python"


class _EmptyData(LoaderError, ValueError):
    """Data of length zero, for which Ignite's engines raise a `ValueError`."""


class ReadyBatches(List[Any]):
    """Batches of which it is known that each fills a device call."""


class Loaders:
    """Makes the loaders of one engine, each once.

    Args:
        options: `poptorch.Options` of the model the data is for.
        training: Whether micro-batches have to be of one size.
        drop_last: Whether incomplete device calls are dropped (True) or kept for filling up (False); as `training`
            unless given.
        mode: A `poptorch.DataLoaderMode`; `Sync` unless given.
        async_options: Arguments for PopTorch's asynchronous accessor.
        rewindable: Whether loaders get a `RewindableSampler`, for a deterministic engine.
    """

    def __init__(
        self,
        options: Options,
        *,
        training: bool,
        drop_last: Optional[bool] = None,
        mode: Optional[Any] = None,
        async_options: Optional[Dict[str, Any]] = None,
        rewindable: bool = False,
    ) -> None:
        self.options = options
        self._training = training
        self._drop_last = training if drop_last is None else drop_last
        self._mode = mode
        self._async_options = async_options
        self._rewindable = rewindable
        self._made: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._told_of_ready_batches = False

    def swap(self, data: Any) -> Any:
        """Return what to iterate instead of `data`.

        A torch loader becomes a `poptorch.DataLoader`, the same one each time. Everything else is expected to yield
        ready batches and stays what it is, except that an iterable of unknown length says so when it yields nothing.
        In training it is said once that they are cut where a loader's batches are joined.

        Raises:
            LoaderError: The data is smaller than one device call, cut for other options than the model's, or empty
                (a `ValueError`, too).
        """
        if data is None:
            return None
        if isinstance(data, backend.poptorch().DataLoader):
            self._check_poptorch_loader(data)
            return data
        if isinstance(data, DataLoader) and self._can_swap(data):
            made = self._made.get(data)
            if made is None:
                made = self._made[data] = self._make(data)
            return made
        self._tell_of_ready_batches(data)
        if hasattr(data, "__len__"):
            with contextlib.suppress(TypeError):
                if not len(data):
                    raise _EmptyData("The data contains no batches, so there is nothing to run on.")
                return data
        return _Batches(data)

    @staticmethod
    def reuses_memory(data: Any) -> bool:
        """Tell whether each batch may lie where the one before was, as it does with PopTorch's asynchronous accessor.

        PopTorch does not say how a loader of the user's own was made, so that may.
        """
        poptorch = backend.poptorch()
        if isinstance(data, poptorch.DataLoader):
            return bool(getattr(data, "reuses_memory", True))
        return isinstance(data, poptorch.AsynchronousDataAccessor)

    def geometry(self, data: Any) -> Optional[BatchGeometry]:
        """Return the batching arithmetic for a loader; None for data that does not say its micro-batch size."""
        if isinstance(data, backend.poptorch().DataLoader):
            combined = data.combinedBatchSize
            size = combined // self._micro_batches if combined else None
        elif isinstance(data, DataLoader):
            size = _micro_batch_size(data)
        else:
            size = None
        return BatchGeometry.from_options(self.options, size) if size else None

    def explain(self, data: Any, accumulation: Optional[int] = None) -> str:
        """Return the arithmetic from sample to epoch for a loader, in one or two sentences.

        Args:
            accumulation: Micro-batches of an update, if they are others by now than the options say.
        """
        geometry = self.geometry(data)
        if geometry is None:
            return "Ready batches: one item is one device call."
        geometry = geometry.accumulating(accumulation or geometry.gradient_accumulation)
        samples = _sample_count(data, self._training)
        if samples is None:
            return f"{geometry.explain()}."
        text = f"{geometry.explain()}. {geometry.explain_epoch(samples, self._drop_last)}."
        updates = geometry.updates_per_epoch(samples, self._drop_last)
        return f"{text} {updates} weight updates per epoch." if self._training else text

    def epoch(self, data: Any) -> List[BatchGeometry]:
        """Return the arithmetic of every device call in one pass over the data.

        Raises:
            LoaderError: The data has no length, or does not say its micro-batch size.
        """
        geometry = self.geometry(data)
        if geometry is None and hasattr(data, "__len__"):
            return [BatchGeometry.from_options(self.options, 1)] * len(data)  # one item is one device call
        samples = None if geometry is None else _sample_count(data, self._training)
        if geometry is None or samples is None:
            raise LoaderError("The data has no length, so the device calls of an epoch are not known before the run.")
        calls = [geometry] * (samples // geometry.global_batch_size)
        rest = 0 if self._drop_last else samples % geometry.global_batch_size
        if rest:
            calls.append(dataclasses.replace(geometry, device_iterations=-(-rest // geometry.accumulated_batch_size)))
        return calls

    @property
    def _micro_batches(self) -> int:
        return BatchGeometry.from_options(self.options, 1).global_batch_size

    def _tell_of_ready_batches(self, data: Any) -> None:
        """Say how data is understood that could be micro-batches, or whole calls of a device."""
        if not self._training or self._micro_batches == 1 or self._told_of_ready_batches:
            return
        if isinstance(data, (ReadyBatches, backend.poptorch().AsynchronousDataAccessor)):
            return  # an accessor reads a poptorch.DataLoader
        self._told_of_ready_batches = True
        what = "a DataLoader without batching" if isinstance(data, DataLoader) else f"a {type(data).__qualname__}"
        logger.warning(
            "The data is %s, whose elements nothing can join: each is taken for the global batch of one device call "
            "and cut into %d micro-batches (%s). If its elements are the micro-batches, as the batches of a DataLoader "
            "are, pass a torch.utils.data.DataLoader with a batch_size, or join %d of them into one element.",
            what,
            self._micro_batches,
            BatchGeometry.from_options(self.options, 1).factors(),
            self._micro_batches,
        )

    def _can_swap(self, loader: DataLoader[Any]) -> bool:
        if loader.batch_sampler is None:
            # batch_size=None: the data set's own items are the batches.
            return False
        if type(loader).__iter__ is DataLoader.__iter__:
            return True
        if self._micro_batches == 1:
            return False
        raise LoaderError(
            f"The loader is a {type(loader).__qualname__}, which iterates in its own way, so its batches cannot be "
            f"joined to the {self._micro_batches} micro-batches of one device call. Pass a "
            "torch.utils.data.DataLoader, a poptorch.DataLoader, or an iterable of batches that fill a whole call."
        )

    def _make(self, loader: DataLoader[Any]) -> Any:
        samples = _sample_count(loader, self._training)
        if samples == 0:
            raise _EmptyData("The data set (or its sampler) contains no samples, so there is nothing to run on.")
        geometry = self.geometry(loader)
        if geometry is None:
            raise LoaderError(
                f"The loader's batch sampler, a {type(loader.batch_sampler).__qualname__}, does not say how large its "
                "batches are, and a compiled model needs one size. Give it an attribute batch_size."
            )
        if samples is not None:
            self._check_size(samples, geometry)
        arguments = _kept_arguments(loader)
        arguments["batch_size"] = geometry.micro_batch_size
        # Of data that does not say how many samples it has, the loader itself drops and counts the last ones.
        counts = self._drop_last and samples is None and self._mode != _modes().Async
        if self._drop_last and samples is None and not counts:
            logger.warning(
                "The data, a %s, has no length, and with DataLoaderMode.Async each worker leaves out what does not "
                "fill a device call of %d samples, without saying how many: AsyncRebatched and Sync say it.",
                type(loader.dataset).__qualname__,
                geometry.global_batch_size,
            )
        arguments["drop_last"] = self._drop_last and not counts
        if not isinstance(loader.dataset, IterableDataset):
            sampler: Any = loader.sampler
            if not self._training or loader.batch_size is None:
                sampler = _Indices(loader.batch_sampler, geometry.micro_batch_size if self._training else None)
            arguments["sampler"] = RewindableSampler(sampler) if self._rewindable else sampler
        if self._mode is not None:
            arguments["mode"] = self._mode
        if self._async_options is not None:
            arguments["async_options"] = self._async_options
        # What each process reads is the user's sampler's business, as it is on any other device.
        arguments["auto_distributed_partitioning"] = False
        with _without_tail_warning():
            made = _loader_class(backend.poptorch().DataLoader)(self.options, loader.dataset, **arguments)
        if self._training and loader.batch_size is not None:
            made.native_batches, made.native_size = loader.batch_sampler, loader.batch_size
        made.reuses_memory = self._mode not in (None, _modes().Sync)
        made.drops_incomplete = counts
        made.begins_whole = self._training
        return made

    def _check_size(self, samples: int, geometry: BatchGeometry) -> None:
        what = "Training" if self._training else "Evaluation"
        if not self._drop_last and not self._training:
            logger.info("%s: %s.", what, geometry.explain_epoch(samples, drop_last=False))
            return
        if samples < geometry.global_batch_size:
            raise LoaderError(
                f"The data set has {samples} samples, fewer than one device call consumes: {geometry.explain()}. Lower "
                "deviceIterations, gradientAccumulation, replicationFactor or the loader's batch_size."
            )
        dropped = self._drop_last and geometry.samples_dropped(samples)
        level = logging.WARNING if dropped else logging.INFO
        logger.log(level, "%s: %s. %s.", what, geometry.explain(), geometry.explain_epoch(samples, self._drop_last))

    def _check_poptorch_loader(self, loader: PopTorchLoader) -> None:
        if loader.combinedBatchSize is None:
            return
        theirs = BatchGeometry.from_options(loader.options, 1)
        ours = BatchGeometry.from_options(self.options, 1)
        if theirs.global_batch_size != ours.global_batch_size and self._training:
            raise LoaderError(
                f"The poptorch.DataLoader was made with options that put {theirs.global_batch_size} micro-batches into "
                f"a device call ({theirs.factors()}), but the model is compiled for {ours.global_batch_size} "
                f"({ours.factors()}). Make the loader with trainer.ipu.training.options, or say all factors in the "
                "options that both are made with."
            )
        if not self._training and getattr(loader, "drop_last", False):
            samples = _sample_count(loader, training=True)
            dropped = samples % loader.combinedBatchSize if samples else 0
            if dropped and loader not in self._made:
                self._made[loader] = loader
                logger.warning(
                    "Evaluation leaves out the last %d of %d samples, because the poptorch.DataLoader drops what does "
                    "not fill a device call. Make it with drop_last=False to evaluate every sample.",
                    dropped,
                    samples,
                )


class _Indices:
    """The indices of a batch sampler one by one, for a loader that cuts them anew; of batches of a size, if given."""

    def __init__(self, batch_sampler: Any, size: Optional[int]) -> None:
        self._batch_sampler = batch_sampler
        self._size = size

    def __iter__(self) -> Iterator[Any]:
        short = None
        for indices in self._batch_sampler:
            if self._size is not None:
                if short is not None or len(indices) > self._size:
                    raise LoaderError(
                        f"The batch sampler yields batches of {len(indices) if short is None else short} samples where "
                        f"{self._size} are expected: a compiled model trains on micro-batches of one size. Use a "
                        "sampler with equal batches."
                    )
                if len(indices) < self._size:
                    short = len(indices)
            yield from indices

    def __len__(self) -> int:
        count = _index_count(self._batch_sampler)
        if count is None:
            raise TypeError(f"A {type(self._batch_sampler).__qualname__} does not tell how many samples it yields.")
        return count


class _Batches:
    """An iterable of ready batches that is not allowed to be empty."""

    def __init__(self, data: Any) -> None:
        self.data = data
        self._seen = False

    def __iter__(self) -> Iterator[Any]:
        for batch in self.data:
            self._seen = True
            yield batch
        if not self._seen:
            raise LoaderError(
                f"The data, a {type(self.data).__qualname__}, yielded no batch, so there is nothing to run on. (A "
                "generator that was iterated before is exhausted.)"
            )


@functools.lru_cache(maxsize=None)
def _loader_class(base: Any) -> Any:
    """Return `poptorch.DataLoader` with failures explained."""

    class IPUDataLoader(base):  # type: ignore[misc]
        """A `poptorch.DataLoader` that says what happened when a worker fails or when there is no data."""

        native_batches: Optional[Any] = None
        native_size = 0
        drops_incomplete = False
        begins_whole = False
        _told = False

        def __iter__(self) -> Iterator[Any]:
            wanted = getattr(self.native_batches, "batch_size", self.native_size)
            if wanted != self.native_size:
                raise LoaderError(
                    f"The loader's batch size was changed from {self.native_size} to {wanted}, but a compiled model "
                    "has micro-batches of one size. Keep it; to use more samples per weight update, train on with a "
                    "new trainer that has a larger gradient_accumulation_steps."
                )
            # Begun now and not with the first batch: it draws from the host's random numbers.
            return self._explaining(super().__iter__())

        def _explaining(self, batches: Iterator[Any]) -> Iterator[Any]:
            yielded, left_out = False, 0
            try:
                for batch in batches:
                    try:
                        rows = row_count(batch)
                    except RowsError:
                        rows = self.combinedBatchSize  # prepare_batch may know where they are
                    if self.drops_incomplete and rows < self.combinedBatchSize:
                        left_out += rows
                        continue
                    if not yielded and self.begins_whole and rows < self.combinedBatchSize:
                        break
                    yielded = True
                    yield batch
            except Exception as error:
                explained = _explained(error, self.num_workers)
                if explained is None:
                    raise
                raise explained from error
            if left_out and yielded and not self._told:
                self._told = True
                logger.warning(
                    "%d samples at the end of the data, a %s, did not fill a device call of %d and are left out.",
                    left_out,
                    type(self.dataset).__qualname__,
                    self.combinedBatchSize,
                )
            if not yielded:
                raise LoaderError(
                    "The loader yielded nothing: the data set ended before it filled one device call of "
                    f"{self.combinedBatchSize} samples. Lower deviceIterations, gradientAccumulation or batch_size."
                )

        def __reduce_ex__(self, protocol: Any) -> Any:
            # PopTorch pickles the loader into a worker process, which needs none of this.
            _, _, state, *_ = super().__reduce_ex__(protocol)
            return object.__new__, (base,), state

    return IPUDataLoader


def _modes() -> Any:
    return backend.poptorch().DataLoaderMode


def _explained(error: Exception, workers: int) -> Optional[LoaderError]:
    text = str(error)
    died = isinstance(error, RuntimeError) and "DataLoader worker" in text and "Caught" not in text
    if died or (workers and _lost_connection(error)):
        return LoaderError(
            f"A worker process of the loader died: {text} Usually it ran out of memory or shared memory, or crashed in "
            "native code. Use fewer workers, or num_workers=0 to see the failure in this process."
        )
    if isinstance(error, AssertionError) and "data fetcher" in text:
        return LoaderError(
            f"The process that prepares batches for the asynchronous loader failed: {text} Use mode Sync and "
            "num_workers=0 to see the failure in this process."
        )
    return None


def _lost_connection(error: Exception) -> bool:
    """Return whether a connection to another process broke, as where a worker dies before its batch is fetched."""
    return isinstance(error, (OSError, EOFError)) and any(
        frame.f_globals.get("__name__", "").startswith("multiprocessing.")
        for frame, _ in traceback.walk_tb(error.__traceback__)
    )


def _kept_arguments(loader: DataLoader[Any]) -> Dict[str, Any]:
    """Return the arguments of a torch loader that mean the same to `poptorch.DataLoader`."""
    arguments = {name: getattr(loader, name) for name in _KEPT}
    if loader.num_workers:
        arguments["prefetch_factor"] = loader.prefetch_factor
    if not getattr(loader, "in_order", True):
        arguments["in_order"] = False
    if loader.pin_memory:
        logger.info("pin_memory=True is left out: an IPU reads batches from ordinary memory.")
    return arguments


def _micro_batch_size(loader: DataLoader[Any]) -> Optional[int]:
    if loader.batch_size is not None:
        return loader.batch_size
    sampler: Any = loader.batch_sampler
    size = getattr(sampler, "batch_size", None)
    if isinstance(size, int):
        return size
    if isinstance(sampler, (list, tuple)) and sampler:
        return max(len(indices) for indices in sampler)
    return None


def _sample_count(loader: Any, training: bool) -> Optional[int]:
    """Return the samples of one pass over a loader's data; None if it cannot be known."""
    if isinstance(loader.dataset, IterableDataset):
        return len(loader.dataset) if isinstance(loader.dataset, Sized) else None
    if loader.batch_size is None or not training:
        return _index_count(loader.batch_sampler)
    try:
        return len(loader.sampler)
    except TypeError:
        return None


def _index_count(batch_sampler: Any) -> Optional[int]:
    if isinstance(batch_sampler, (list, tuple)):
        return sum(len(indices) for indices in batch_sampler)
    size = getattr(batch_sampler, "batch_size", None)
    try:
        if getattr(batch_sampler, "drop_last", False) and isinstance(size, int):
            return len(batch_sampler) * size
        return len(batch_sampler.sampler)
    except (AttributeError, TypeError):
        return None


@contextlib.contextmanager
def _without_tail_warning() -> Iterator[None]:
    """Keep PopTorch from announcing that the last item of an evaluation is refused: the engine fills it up."""
    logger = logging.getLogger(_POPTORCH_LOGGER)

    def keep(record: logging.LogRecord) -> bool:
        return "is not divisible by the number" not in record.getMessage()

    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)
