"""`CallLoader`: the batches of a user's loader, as many at a time as one device call takes.

The loader is iterated as it is anywhere else, so that samplers, `collate_fn`, worker processes and random numbers work
as in PyTorch. Its batches are joined after `prepare_batch` has seen each of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import traceback
from typing import Any, Iterator, List, Optional, Sequence

import torch
from torch.utils.data import IterableDataset

from ignite_ipu.engines.resume.position import RewindableSampler
from ignite_ipu.errors import LoaderError, RowsError, logger
from ignite_ipu.program.ignored_warnings import ignored_warnings
from ignite_ipu.program.micro_batches import NotJoined, cut_shown, join_to_show
from ignite_ipu.program.tensors.rows import row_count
from ignite_ipu.program.tensors.trees import PLAIN, map_tensors, opened, opened_record
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass, version_of


class MicroBatches(List[Any]):
    """The batches of one device call, each as the user's loader has yielded it.

    Attributes:
        joined: The `state.batch` of handlers: one structure with the rows of all, or these batches if their shapes
            differ. None before `show`.
    """

    joined: Optional[Any] = None
    _seen: Sequence[Any] = ()

    def show(self) -> Any:
        """Return the `state.batch` of handlers."""
        if self.joined is None:
            try:
                self.joined = join_to_show(self)
            except NotJoined:
                self.joined = self
            self._seen = _seen_in(self.joined)
        return self.joined

    def parts(self) -> Sequence[Any]:
        """Return the batches, with the memory that handlers had: PyTorch does not count each write into it."""
        return self if self.joined is None or self.joined is self else self._cut(self.joined)

    def as_changed(self, shown: Any) -> Optional[MicroBatches]:
        """Return the micro-batches of the result of `show` after handlers changed it, None if they did not.

        It is cut where these batches begin.
        """
        if shown is self or (shown is self.joined and _alike(_seen_in(shown), self._seen)):
            return None
        is_list = isinstance(shown, MicroBatches) or (self.joined is self and isinstance(shown, (list, tuple)))
        return MicroBatches(shown if is_list else self._cut(shown))

    def _cut(self, shown: Any) -> List[Any]:
        try:
            return cut_shown(shown, self)
        except (NotJoined, RowsError) as error:
            raise LoaderError(
                f"A handler has changed state.batch, which held the rows of the {len(self)} micro-batches of a call, "
                f"and it cannot be cut into them: {error} Keep the number of rows."
            ) from error


def _seen_in(value: Any) -> List[Any]:
    """Return the keys and leaves of a batch, each tensor with the number of its writes."""
    with DisableTorchFunctionSubclass():
        return list(_entries(value))


def _entries(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield 0 if value.is_inference() else version_of(value)
    elif type(value) in (list, tuple) and value and type(value[0]) is str:
        yield tuple(value)  # compared at once
        return
    is_leaf = type(value) in PLAIN or isinstance(value, torch.Tensor)
    container = None if is_leaf else opened(value) or opened_record(value)
    if container is None:
        yield value
        return
    yield from container.keys
    for part in container.parts:
        yield from _entries(part)


def _alike(now: Sequence[Any], before: Sequence[Any]) -> bool:
    return len(now) == len(before) and all(map(_is_same, now, before))


def _is_same(now: Any, before: Any) -> bool:
    if type(now) is tuple and type(before) is tuple:  # of texts, and the values beside the first
        return _alike(now, before)
    return now is before or (type(now) in PLAIN and type(now) is type(before) and bool(now == before))


@dataclasses.dataclass
class Source:
    """Loader that is iterated in the place of a user's, for as long as that exists.

    Attributes:
        loader: The loader, None where the user's own is iterated.
        rewindable: The sampler of its batches, if it can leave some out.
        reuses_memory: Whether each batch may lie where the previous one was.
        told: Whether it has been logged how many samples a pass leaves out.
    """

    loader: Optional[Any] = None
    rewindable: Optional[RewindableSampler] = None
    reuses_memory: bool = False
    told: bool = False


class CallLoader:
    """Yields the data of one device call: a batch of a loader if one is enough, otherwise `MicroBatches`.

    Other attributes are the user's loader's.

    Args:
        loader: The user's loader.
        source: The data to iterate.
        micro_batches: Batches of a call.
        size: Samples of a batch; None if it is not known.
        samples: Samples of a pass over the data, if they are cut into batches of `size`; None if it is not known.
        drops: Whether the batches that do not fill a call are left out, and batches with fewer samples than others.
        training: Whether the data is to fill a call at least.
    """

    def __init__(
        self,
        loader: Any,
        source: Source,
        *,
        micro_batches: int,
        size: Optional[int],
        samples: Optional[int],
        drops: bool,
        training: bool,
    ) -> None:
        self.loader = loader
        self.source = source
        self.micro_batches = micro_batches
        self.size = size
        self._samples = samples
        self._drops, self._training = drops, training
        self._streams = isinstance(getattr(loader, "dataset", None), IterableDataset)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "loader" not in vars(self):
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __len__(self) -> int:
        batches = len(self.loader)
        if not self._drops:
            return -(-batches // self.micro_batches)
        return (batches - self._has_short_batch) // self.micro_batches

    def __iter__(self) -> Iterator[Any]:
        _check_size_kept(self.loader)
        # Begun now and not with the first batch: it draws from the host's random numbers.
        # There is nothing to pin for: an IPU reads batches from ordinary memory.
        with ignored_warnings(".*pin_memory"):
            batches = iter(self.loader if self.source.loader is None else self.source.loader)
        return self._calls(batches)

    def terminate(self) -> None:
        """End the process of an asynchronous loader."""
        end = getattr(self.source.loader, "terminate", None)
        if end is not None:
            end()

    @property
    def _has_short_batch(self) -> bool:
        """True if the last batch is known to have fewer samples than the others."""
        known = self._samples is not None and self.size is not None
        return known and bool(self._samples % self.size) and not self.loader.drop_last  # type: ignore[operator]

    def _calls(self, batches: Iterator[Any]) -> Iterator[Any]:
        calls, group = 0, MicroBatches()
        left_out: List[Any] = []
        try:
            for batch in self._alike(batches, left_out) if self._drops else batches:
                if self.source.reuses_memory and self.micro_batches > 1:
                    batch = map_tensors(batch, torch.clone)
                group.append(batch)
                # The first call is whole: those for the rest of the data are cut by its arithmetic.
                whole = calls or not self._training or self._drops or not self._is_short(batch)
                if len(group) == self.micro_batches and whole:
                    calls += 1
                    yield group if self.micro_batches > 1 else batch
                    group = MicroBatches()
        except Exception as error:
            explained = _explained(error, getattr(self.loader, "num_workers", 0))
            if explained is None:
                raise
            raise explained from error
        if group and not self._drops and (calls or not self._training):
            calls += 1
            yield group
        elif group:
            left_out += group
        if not calls:
            raise LoaderError(
                f"The loader yielded nothing: the data set ended before it filled one device call of "
                f"{self._call_in_words()}. Lower deviceIterations, gradientAccumulation or batch_size."
            )
        if left_out and self._samples is None and not self.source.told:
            self.source.told = True
            logger.warning(
                "%s at the end of the data, a %s, did not fill a device call of %s and are left out.",
                _samples_of(left_out),
                type(getattr(self.loader, "dataset", self.loader)).__qualname__,
                self._call_in_words(),
            )

    def _alike(self, batches: Iterator[Any], left_out: List[Any]) -> Iterator[Any]:
        """Return the batches without those that have fewer samples, because the data has ended."""
        if self._streams or self._has_short_batch:
            return self._whole(batches, left_out)
        return batches

    def _whole(self, batches: Iterator[Any], left_out: List[Any]) -> Iterator[Any]:
        last = None if self._streams else len(self.loader) - 1
        for number, batch in enumerate(batches):
            if number == last or (self._streams and self._is_short(batch)):
                left_out.append(batch)
            else:
                yield batch

    def _is_short(self, batch: Any) -> bool:
        try:
            return self.size is not None and row_count(batch) < self.size
        except RowsError:
            return False  # prepare_batch may find them

    def _call_in_words(self) -> str:
        if self.size is None:
            return f"{self.micro_batches} batches"
        return f"{self.micro_batches * self.size} samples"


def _check_size_kept(loader: Any) -> None:
    """Refuse a batch size that was changed, which a torch loader has in two places."""
    size = getattr(loader, "batch_size", None)
    wanted = getattr(getattr(loader, "batch_sampler", None), "batch_size", size)
    if size is not None and wanted != size:
        raise LoaderError(
            f"The loader's batch size was changed from {size} to {wanted}, but a compiled model has micro-batches of "
            "one size. Keep it; to use more samples per weight update, train on with a new trainer that has a larger "
            "gradient_accumulation_steps."
        )


def _samples_of(batches: Sequence[Any]) -> str:
    with contextlib.suppress(RowsError):
        return f"{sum(map(row_count, batches))} samples"
    return f"{len(batches)} batches"


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
