"""One process's share of a data set that several processes train on."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List

import torch
from torch.utils.data import Dataset, Sampler


class ProcessShare(Dataset):  # type: ignore[type-arg]
    """The consecutive range of a data set that process `process_id` of `num_processes` reads.

    With `drop_last` every process gets the same number of elements, a multiple of `combined_batch_size`; else all
    elements are given out, as evenly as possible. If `shuffled`, indices come from a `ShuffledShare` and may lie beyond
    the range. Other attributes are those of the data set itself.
    """

    def __init__(
        self,
        dataset: Any,
        combined_batch_size: int,
        drop_last: bool,
        process_id: int,
        num_processes: int,
        shuffled: bool,
    ) -> None:
        self._dataset = dataset
        self._shuffled = shuffled
        self.total = len(dataset)
        if drop_last:
            self._length = combined_batch_size * (self.total // (combined_batch_size * num_processes))
            if not self._length:  # PopTorch fails with a bare division by zero
                raise ZeroDivisionError(
                    f"{self.total} elements are fewer than one batch of {combined_batch_size} for each of the "
                    f"{num_processes} processes. Use a smaller batch, fewer processes, or drop_last=False."
                )
            self.start = process_id * self._length
            self.left_over = self.total % self._length
        else:
            each, one_more = divmod(self.total, num_processes)
            self._length = each + (process_id < one_more)
            self.start = process_id * each + min(process_id, one_more)
            self.left_over = 0

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self._dataset[self._global_index(index)]

    def __getattr__(self, name: str) -> Any:
        # Unpickling looks for hooks before there is a data set to ask.
        dataset = self.__dict__.get("_dataset")
        if dataset is None or (name.startswith("__") and name != "__getitems__"):
            raise AttributeError(name)
        if name == "__getitems__":
            fetch = dataset.__getitems__
            return lambda indices: fetch([self._global_index(index) for index in indices])
        return getattr(dataset, name)

    def _global_index(self, index: int) -> int:
        size = self.total if self._shuffled else self._length
        if not -size <= index < size:
            raise IndexError(
                f"Index {index} is outside this process's share of {self._length} elements. A sampler over the whole "
                "data set needs auto_distributed_partitioning=False."
            )
        return (index % size + self.start) % self.total


class ShuffledShare(Sampler):  # type: ignore[type-arg]
    """Draws a permutation of the whole data set for each epoch, the same in every process, and yields one range of it.

    The permutations come from one generator, so that epochs differ. In every other epoch, from the first, the range is
    moved on by the number of elements left over, so that those get their turn. Indices count from the share's start.
    """

    def __init__(self, share: ProcessShare, seed: int) -> None:
        self._share = share
        self._generator = torch.Generator().manual_seed(seed)
        self._epoch = 0
        self._order: List[int] = []

    def begin_epoch(self) -> None:
        """Draw the next permutation."""
        share = self._share
        permutation = torch.randperm(share.total, generator=self._generator)
        first = share.start + (share.left_over if self._epoch % 2 == 0 else 0)
        order = permutation[first : first + len(share)]
        self._order = ((order - share.start) % share.total).tolist()
        self._epoch += 1

    def __iter__(self) -> Iterator[int]:
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._share)

    def __getstate__(self) -> Dict[str, Any]:
        # Generators pickle only since torch 2.4, their states always.
        return {**self.__dict__, "_generator": self._generator.get_state()}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._generator = torch.Generator()
        self._generator.set_state(state["_generator"])
