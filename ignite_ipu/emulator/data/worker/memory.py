"""Memory that an accessor and its worker process share: files without a name, and the slots of items in one."""

from __future__ import annotations

import itertools
import mmap
import os
import pickle
import tempfile
from dataclasses import dataclass
from multiprocessing import reduction
from typing import Any, Sequence, Tuple

import torch

_ALIGNMENT = 64


class SharedFile:
    """A file that has no name, so that nothing can leak; it pickles into a child process that is being started.

    torch's own shared memory has a name for a moment, and takes a thread and a socket with a name to be sent. The file
    is that of `descriptor`, closed with this object, or by default a new one, in memory where the system can.
    """

    def __init__(self, descriptor: int = -1) -> None:
        if descriptor < 0 and hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("ignite_ipu-data", os.MFD_CLOEXEC)
        self._file = tempfile.TemporaryFile() if descriptor < 0 else open(descriptor, "w+b")  # noqa: SIM115

    @classmethod
    def pickled(cls, value: Any) -> SharedFile:
        """Return a new file that holds the pickle of `value`."""
        file = cls()
        try:
            pickle.dump(value, file._file, protocol=pickle.HIGHEST_PROTOCOL)
            file._file.flush()
        except BaseException:
            file.close()
            raise
        return file

    def unpickle(self) -> Any:
        self._file.seek(0)
        return pickle.load(self._file)

    def __reduce__(self) -> Any:
        return _received, (reduction.DupFd(self.fileno()),)

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()


@dataclass(frozen=True)
class TensorSpec:
    """Shape and type that one tensor has in every item."""

    shape: Tuple[int, ...]
    dtype: torch.dtype

    @property
    def size(self) -> int:
        """Bytes it takes, up to where the next may begin."""
        size = torch.Size(self.shape).numel() * torch.empty((), dtype=self.dtype).element_size()
        return -(-size // _ALIGNMENT) * _ALIGNMENT


class Ring:
    """Slots with the tensors of one item each, over memory that two processes map.

    The memory belongs to no owner: it goes when both processes have let go of the tensors over it.
    """

    def __init__(self, specs: Sequence[TensorSpec], slots: int, file: SharedFile) -> None:
        # One byte more, since nothing of length zero can be mapped.
        size = slots * sum(spec.size for spec in specs) + 1
        # Allocated now: if memory runs out, writing to a file grown by truncation would kill the process.
        os.posix_fallocate(file.fileno(), 0, size)
        memory = mmap.mmap(file.fileno(), size)
        self._poison = [poison_value(spec.dtype) for spec in specs]
        starts = list(itertools.accumulate([0, *(spec.size for spec in specs)]))
        self.slots = [
            [_tensor(memory, slot * starts[-1] + start, spec) for start, spec in zip(starts, specs)]
            for slot in range(slots)
        ]

    def poison(self, index: int) -> None:
        """Fill one slot with values that no computation takes for data: NaN, or the extreme of an integer type."""
        for tensor, value in zip(self.slots[index], self._poison):
            tensor.fill_(value)


def poison_value(dtype: torch.dtype) -> float:
    """Return NaN for floating point and complex types, else the value farthest from use as an index or a count."""
    if dtype.is_floating_point or dtype.is_complex:
        return float("nan")
    if dtype == torch.bool:
        return True
    info = torch.iinfo(dtype)
    return info.min if info.min < 0 else info.max


def _received(descriptor: Any) -> SharedFile:
    return SharedFile(descriptor.detach())


def _tensor(memory: mmap.mmap, offset: int, spec: TensorSpec) -> torch.Tensor:
    if spec.size == 0:
        return torch.empty(spec.shape, dtype=spec.dtype)
    # A storage of its own for each tensor: saving one must not save the whole ring.
    count = torch.Size(spec.shape).numel()
    return torch.frombuffer(memory, dtype=spec.dtype, count=count, offset=offset).view(spec.shape)
