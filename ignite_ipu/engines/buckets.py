"""Sequences of many lengths in a few shapes: batches of like lengths, padded to the length of their bucket.

Each shape is a program of its own. Without buckets a model whose inputs have many lengths needs one program for each of
them, or pads every sample to the longest.
"""

from __future__ import annotations

import bisect
from typing import Any, Dict, Iterator, List, Mapping, Sequence, Union

import torch
from torch.nn import functional as F
from torch.utils.data import Sampler, default_collate

from ignite_ipu.errors import LoaderError
from ignite_ipu.program.config import positive


def bucket_boundaries(lengths: Sequence[int], buckets: int) -> List[int]:
    """Return the largest length of each bucket, for buckets with about as many samples each.

    Args:
        lengths: The length of every sample.
        buckets: The most buckets, and so the most programs; lengths that occur often may make them fewer.
    """
    ordered = sorted(lengths)
    if not ordered:
        raise LoaderError("There are no lengths to make buckets of.")
    ends = [-(-len(ordered) * number // positive("buckets", buckets)) for number in range(1, buckets + 1)]
    return sorted({ordered[end - 1] for end in ends if end})


class BucketBatchSampler(Sampler[List[int]]):
    """Yields batches of samples of one bucket, and as many of the same bucket in a row as one device call takes.

    Give it to a `DataLoader` as `batch_sampler`, with a `PadToBucket` as `collate_fn`.

    Args:
        lengths: The length of every sample of the data set.
        boundaries: The largest length of each bucket; `bucket_boundaries` chooses them.
        batch_size: Samples of a micro-batch.
        batches_per_call: deviceIterations x gradientAccumulation x replicationFactor, as
            `BatchGeometry.from_options(options, 1).input_micro_batches` has it.
        calls_in_a_row: Calls of one bucket that follow each other. Weights and optimizer state move by way of the host
            when the shape changes, so that longer rows are faster, and shorter ones mix lengths more evenly.
        shuffle: Shuffle the samples of each bucket and the rows; `set_epoch` or each pass gives another order.
        seed: Of the order.

    Attributes:
        dropped: Samples that a pass leaves out, because they do not fill a call of their bucket.
        programs: Buckets of which a pass has calls: each is a shape, and so a program.
        padding: Share of the padded elements that is padding, between 0 and 1.

    Raises:
        LoaderError: A sample is longer than the last boundary, or no bucket fills a call.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        boundaries: Sequence[int],
        batch_size: int,
        batches_per_call: int = 1,
        calls_in_a_row: int = 1,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        self.boundaries = sorted(boundaries)
        self.batch_size = positive("batch_size", batch_size)
        self.batches_per_call = positive("batches_per_call", batches_per_call)
        self.drop_last = True
        self._row = positive("calls_in_a_row", calls_in_a_row)
        self._shuffle, self._seed, self._epoch = shuffle, seed, 0
        longest = max(lengths, default=0)
        if not self.boundaries or longest > self.boundaries[-1]:
            last = self.boundaries[-1] if self.boundaries else 0
            raise LoaderError(
                f"A sample has length {longest}, but the last boundary is {last}. Add a boundary that is as long, or "
                "leave the sample out."
            )
        self._buckets: Dict[int, List[int]] = {}
        for index, length in enumerate(lengths):
            self._buckets.setdefault(bisect.bisect_left(self.boundaries, length), []).append(index)
        samples = self.batch_size * self.batches_per_call
        self._calls = {bucket: len(indices) // samples for bucket, indices in self._buckets.items()}
        used = [bucket for bucket, calls in self._calls.items() if calls]
        if not used:
            raise LoaderError(
                f"No bucket has the {samples} samples of a device call ({self.batches_per_call} batches of "
                f"{self.batch_size}). Use fewer buckets, or smaller batches."
            )
        self.programs = len(used)
        self.dropped = len(lengths) - samples * sum(self._calls.values())
        # The mean length of a bucket stands for that of the samples which a pass takes from it.
        real = sum(
            samples * self._calls[each] * sum(lengths[i] for i in self._buckets[each]) / len(self._buckets[each])
            for each in used
        )
        self.padding = 1 - real / sum(samples * self._calls[each] * self.boundaries[each] for each in used)

    def __len__(self) -> int:
        return self.batches_per_call * sum(self._calls.values())

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next pass, as `DistributedSampler` has it."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[List[int]]:
        generator = torch.Generator().manual_seed(self._seed + self._epoch)
        self._epoch += 1
        rows: List[List[int]] = []
        samples = self.batch_size * self.batches_per_call
        for bucket in sorted(self._buckets):
            indices = self._buckets[bucket]
            order = self._order(len(indices), generator)
            taken = [indices[i] for i in order[: samples * self._calls[bucket]]]
            row = samples * self._row
            rows += [taken[start : start + row] for start in range(0, len(taken), row)]
        for number in self._order(len(rows), generator):
            for start in range(0, len(rows[number]), self.batch_size):
                yield rows[number][start : start + self.batch_size]

    def _order(self, count: int, generator: torch.Generator) -> List[int]:
        return torch.randperm(count, generator=generator).tolist() if self._shuffle else list(range(count))


class PadToBucket:
    """Collates samples, and pads their sequences to the smallest boundary that holds the longest of them.

    A sequence is a tensor whose first dimension is the sample's length. Samples may be tensors, or tuples, lists and
    mappings with sequences and other values in them.

    Args:
        boundaries: As for `BucketBatchSampler`.
        padding: The value of padding; or a mapping of the fields of mappings, or positions in tuples, to values. With a
            mapping, only these fields are padded.
    """

    def __init__(self, boundaries: Sequence[int], padding: Union[float, Mapping[Any, float]] = 0) -> None:
        self.boundaries, self._padding = sorted(boundaries), padding

    def __call__(self, samples: Sequence[Any]) -> Any:
        longest = max(length for sample in samples for length in self._lengths(sample, None))
        place = bisect.bisect_left(self.boundaries, longest)
        if place == len(self.boundaries):
            raise LoaderError(f"A sample has length {longest}, but the last boundary is {self.boundaries[-1]}.")
        return default_collate([self._padded(sample, None, self.boundaries[place]) for sample in samples])

    def _lengths(self, value: Any, field: Any) -> Iterator[int]:
        for key, part in _parts(value):
            yield from self._lengths(part, key)
        if self._pads(value, field):
            yield len(value)

    def _padded(self, value: Any, field: Any, length: int) -> Any:
        if self._pads(value, field):
            padding = self._padding[field] if isinstance(self._padding, Mapping) else self._padding
            return F.pad(value, [0, 0] * (value.dim() - 1) + [0, length - len(value)], value=padding)
        parts = {key: self._padded(part, key, length) for key, part in _parts(value)}
        if isinstance(value, Mapping):
            return parts
        return tuple(parts.values()) if isinstance(value, (tuple, list)) else value

    def _pads(self, value: Any, field: Any) -> bool:
        is_sequence = isinstance(value, torch.Tensor) and value.dim() > 0
        return is_sequence and (not isinstance(self._padding, Mapping) or field in self._padding)


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, (tuple, list)):
        yield from enumerate(value)
