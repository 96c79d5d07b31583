"""A `torch.utils.data.DataLoader` becomes the `CallLoader` that feeds a compiled model.

The batches of the user's loader are the micro-batches. One item of the new loader is the data of one device call: as
many consecutive micro-batches as the options set. Training drops the samples that do not fill a call, and logs their
number. Evaluation keeps it: the engine fills the last call up for the device and counts every sample once.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import logging
import weakref
from typing import Any, Dict, Iterator, List, Optional, Sized

from torch.utils.data import DataLoader, IterableDataset

from ignite_ipu import backend
from ignite_ipu.engines.call_loader import CallLoader, Source
from ignite_ipu.engines.resume.position import RewindableSampler
from ignite_ipu.errors import LoaderError, logger
from ignite_ipu.poptorch_types import DataLoader as PopTorchLoader
from ignite_ipu.program.geometry import BatchGeometry
from ignite_ipu.session.resolved import Resolved
from ignite_ipu.torch_names.loaders import set_iterator

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
    """Makes the loaders of one engine.

    Args:
        resolved: The options of the model the data is for. Micro-batches that train have to be of one size.
        drop_last: Whether incomplete device calls are dropped (True) or kept for filling up (False); unless given, they
            are dropped in training.
        mode: A `poptorch.DataLoaderMode`; `Sync` unless given.
        async_options: Arguments for PopTorch's asynchronous accessor.
        rewindable: Whether loaders get a `RewindableSampler`, for a deterministic engine.
    """

    def __init__(
        self,
        resolved: Resolved,
        *,
        drop_last: Optional[bool] = None,
        mode: Optional[Any] = None,
        async_options: Optional[Dict[str, Any]] = None,
        rewindable: bool = False,
    ) -> None:
        self.resolved = resolved
        self._training = resolved.training
        self._drop_last = resolved.training if drop_last is None else drop_last
        self._mode = mode
        self._async_options = async_options
        self._rewindable = rewindable
        # By a user's loader, which none of them holds.
        self._sources: weakref.WeakKeyDictionary[Any, Source] = weakref.WeakKeyDictionary()
        self._logged_ready_batches = False

    def swap(self, data: Any) -> Any:
        """Return the replacement of `data`.

        A torch loader becomes a `CallLoader`. Other data yields ready batches and is not changed, except that an
        iterable of unknown length raises an error if it is empty. In
        training it is said once that they are cut where a loader's batches are joined.

        Raises:
            LoaderError: The data is smaller than one device call, cut for other options than the model's, or empty
                (a `ValueError`, too).
        """
        if data is None or isinstance(data, CallLoader):
            return data
        if isinstance(data, backend.poptorch().DataLoader):
            self._check_poptorch_loader(data)
            return data
        if isinstance(data, DataLoader):
            return self._grouped(data)
        self._log_ready_batches(data)
        if hasattr(data, "__len__"):
            with contextlib.suppress(TypeError):
                if not len(data):
                    raise _EmptyData("The data contains no batches, so there is nothing to run on.")
                return data
        return _Batches(data)

    @staticmethod
    def reuses_memory(data: Any) -> bool:
        """Return whether each batch may lie where the one before was, as it does with PopTorch's asynchronous accessor.

        PopTorch does not record the options of a user's own loader.
        """
        poptorch = backend.poptorch()
        if isinstance(data, CallLoader):
            return data.source.reuses_memory
        return isinstance(data, (poptorch.DataLoader, poptorch.AsynchronousDataAccessor))

    def geometry(self, data: Any) -> Optional[BatchGeometry]:
        """Return the batching arithmetic for a loader; None for data that does not say its micro-batch size."""
        if isinstance(data, backend.poptorch().DataLoader):
            combined = data.combinedBatchSize
            size = combined // self._micro_batches if combined else None
        elif isinstance(data, (DataLoader, CallLoader)):
            size = _micro_batch_size(data)
        else:
            size = None
        return self._calls_of(size) if size else None

    def explain(self, data: Any, accumulation: Optional[int] = None) -> str:
        """Return the arithmetic from sample to epoch for a loader, in one or two sentences.

        Args:
            accumulation: Micro-batches of an update, if they are others by now than the options say.
        """
        geometry = self.geometry(data)
        if geometry is None and isinstance(data, (DataLoader, CallLoader)):
            return f"{self._micro_batches} batches of the loader are one device call ({self._factors})."
        if geometry is None:
            return "Ready batches: one item is one device call."
        geometry = geometry.accumulating(accumulation or geometry.gradient_accumulation)
        samples = _sample_count(data)
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
        if geometry is None and isinstance(data, DataLoader):
            data = self._grouped(data)
        if geometry is None and hasattr(data, "__len__"):
            return [self.resolved.geometry] * len(data)  # one item is one device call
        samples = None if geometry is None else _sample_count(data)
        if geometry is None or samples is None:
            raise LoaderError("The data has no length, so the device calls of an epoch are not known before the run.")
        calls = [geometry] * (samples // geometry.global_batch_size)
        rest = 0 if self._drop_last else samples % geometry.global_batch_size
        if rest:
            calls.append(dataclasses.replace(geometry, device_iterations=-(-rest // geometry.accumulated_batch_size)))
        return calls

    @property
    def _micro_batches(self) -> int:
        return self.resolved.geometry.global_batch_size

    @property
    def _factors(self) -> str:
        return self.resolved.geometry.factors()

    def _calls_of(self, size: int) -> BatchGeometry:
        return dataclasses.replace(self.resolved.geometry, micro_batch_size=size)

    def _log_ready_batches(self, data: Any) -> None:
        """Log whether each element is treated as a micro-batch or as the batch of a whole device call."""
        if not self._training or self._micro_batches == 1 or self._logged_ready_batches:
            return
        if isinstance(data, (ReadyBatches, backend.poptorch().AsynchronousDataAccessor)):
            return  # an accessor reads a poptorch.DataLoader
        self._logged_ready_batches = True
        logger.warning(
            "The data is a %s, whose elements nothing joins: each is taken for the global batch of one device call "
            "and cut into %d micro-batches (%s). If its elements are the micro-batches, as the batches of a DataLoader "
            "are, pass torch.utils.data.DataLoader(data, batch_size=None), or join %d of them into one element.",
            type(data).__qualname__,
            self._micro_batches,
            self._factors,
            self._micro_batches,
        )

    def _grouped(self, loader: DataLoader[Any]) -> CallLoader:
        samples, size = _sample_count(loader), _micro_batch_size(loader)
        source = self._sources.get(loader)
        if source is None:
            if samples == 0:
                raise _EmptyData("The data set (or its sampler) contains no samples, so there is nothing to run on.")
            if samples is not None and size is not None:
                self._check_size(samples, self._calls_of(size))
            source = self._sources[loader] = self._source(loader)
        return CallLoader(
            loader,
            source,
            micro_batches=self._micro_batches,
            size=size,
            samples=samples,
            drops=self._drop_last,
            training=self._training,
        )

    def _source(self, loader: DataLoader[Any]) -> Source:
        if self._mode not in (None, _modes().Sync):
            if not hasattr(loader, "dataset"):
                raise LoaderError(
                    f"loader_mode={self._mode.name!r}: PopTorch's process would have to iterate a "
                    f"{type(loader).__qualname__}, which has not called DataLoader.__init__. Use Sync."
                )
            return Source(self._asynchronous(loader), reuses_memory=True)
        batches = getattr(loader, "batch_sampler", None)
        if self._rewindable and batches is not None and not isinstance(loader.dataset, IterableDataset):
            sampler = RewindableSampler(batches)
            return Source(_with_batch_sampler(loader, sampler), sampler)
        return Source()

    def _asynchronous(self, loader: DataLoader[Any]) -> PopTorchLoader:
        """Return a loader of PopTorch's that makes the batches of this one in a process of its own."""
        make: Any = backend.poptorch().DataLoader
        arguments = _kept_arguments(loader)
        if loader.batch_sampler is None:
            arguments["batch_size"] = None
        elif isinstance(loader.dataset, IterableDataset):
            arguments.update(batch_size=loader.batch_size, drop_last=loader.drop_last)
        else:
            arguments["batch_sampler"] = loader.batch_sampler
        arguments["mode"] = self._mode
        if self._mode is _modes().AsyncRebatched and (loader.batch_size or 1) == 1:
            arguments["mode"] = _modes().Async  # there is nothing to cut
        if self._async_options is not None:
            arguments["async_options"] = self._async_options
        # Each process reads the indices of the user's sampler, as on any other device.
        arguments["auto_distributed_partitioning"] = False
        with _without_tail_warning():
            made: PopTorchLoader = make(backend.poptorch().Options(), loader.dataset, **arguments)
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
        ours = self.resolved.geometry
        if theirs.global_batch_size != ours.global_batch_size and self._training:
            raise LoaderError(
                f"The poptorch.DataLoader was made with options that put {theirs.global_batch_size} micro-batches into "
                f"a device call ({theirs.factors()}), but the model is compiled for {ours.global_batch_size} "
                f"({ours.factors()}). Make the loader with trainer.ipu.training.options, or say all factors in the "
                "options that both are made with."
            )
        if not self._training and getattr(loader, "drop_last", False):
            samples = _sample_count(loader)
            dropped = samples % loader.combinedBatchSize if samples else 0
            if dropped and loader not in self._sources:
                self._sources[loader] = Source()
                logger.warning(
                    "Evaluation leaves out the last %d of %d samples, because the poptorch.DataLoader drops rows that "
                    "do not fill a device call. Make it with drop_last=False to evaluate every sample.",
                    dropped,
                    samples,
                )


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


def _modes() -> Any:
    return backend.poptorch().DataLoaderMode


def _kept_arguments(loader: DataLoader[Any]) -> Dict[str, Any]:
    """Return the arguments of a torch loader that mean the same to `poptorch.DataLoader`."""
    arguments = {name: getattr(loader, name) for name in _KEPT}
    if loader.num_workers:
        arguments["prefetch_factor"] = loader.prefetch_factor
    if not getattr(loader, "in_order", True):
        arguments["in_order"] = False
    return arguments


def _with_batch_sampler(loader: DataLoader[Any], batch_sampler: Any) -> DataLoader[Any]:
    """Return a copy of a loader that draws its batches' indices from another sampler."""
    copied = copy.copy(loader)
    vars(copied)["batch_sampler"] = batch_sampler
    set_iterator(copied, None)  # processes that stay for the next epoch have the other sampler
    return copied


def _micro_batch_size(loader: Any) -> Optional[int]:
    """Return how many samples a loader's batches have, but for a last one; None if it cannot be known."""
    # A subclass that has not called `DataLoader.__init__` has none of its attributes.
    size, samples = getattr(loader, "batch_size", None), None
    sampler: Any = getattr(loader, "batch_sampler", None)
    if size is None:
        size = getattr(sampler, "batch_size", None)
        if isinstance(sampler, (list, tuple)) and sampler:
            sizes = [len(indices) for indices in sampler]
            size = sizes[0] if max(sizes) == sizes[0] == min(sizes[:-1], default=sizes[0]) else None
    if not isinstance(size, int):
        return None
    if not getattr(loader, "drop_last", False):
        samples = _sample_count(loader)
    return min(size, samples or size)


def _sample_count(loader: Any) -> Optional[int]:
    """Return the samples of one pass over a loader's data, if they are cut into batches of one size.

    None if that cannot be known.
    """
    if not hasattr(loader, "dataset"):
        return None
    if isinstance(loader.dataset, IterableDataset):
        return len(loader.dataset) if isinstance(loader.dataset, Sized) else None
    if loader.batch_sampler is None:
        return None
    try:
        return _index_count(loader.batch_sampler) if loader.batch_size is None else len(loader.sampler)
    except TypeError:
        return None


def _index_count(batch_sampler: Any) -> Optional[int]:
    if isinstance(batch_sampler, (list, tuple)):
        sizes = [len(indices) for indices in batch_sampler]
        return sum(sizes) if len({*sizes[:-1]}) < 2 and sizes[-1:] <= sizes[:1] else None
    size = getattr(batch_sampler, "batch_size", None)
    if not isinstance(size, int):
        return None
    try:
        batches = len(batch_sampler)
        if getattr(batch_sampler, "drop_last", False):
            return batches * size
        samples = len(batch_sampler.sampler)
    except (AttributeError, TypeError):
        return None
    return samples if batches == -(-samples // size) else None


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
