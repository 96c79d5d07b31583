"""Checkpoints are checked byte by byte before they are believed, and read without running anything in them."""

from __future__ import annotations

import errno
import os
import zipfile
from typing import Any, Iterator, List, Union

import torch

from ignite_ipu.checkpoints import plain_pickle
from ignite_ipu.errors import CheckpointError

Path = Union[str, "os.PathLike[str]"]

_CHUNK = 1 << 20
_LARGEST_PICKLE = 256 << 20
_DEEPEST = 64
_LARGEST = 10_000_000


def check_complete(path: Path) -> None:
    """Refuse a file that is not a whole checkpoint: cut short, changed, or of another kind.

    Raises:
        CheckpointError: It is incomplete, unsafe or no checkpoint.
        OSError: It cannot be read.
    """
    name = os.fspath(path)
    size = os.stat(name).st_size
    try:
        with open(name, "rb") as file, zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            _check_entries(entries, size)
            for entry in entries:
                if entry.filename.endswith("/data.pkl") and entry.file_size > _LARGEST_PICKLE:
                    raise CheckpointError(f"its structure alone takes {entry.file_size} bytes")
                with archive.open(entry) as stream:
                    while stream.read(_CHUNK):  # reading to the end compares the checksum
                        pass
    except CheckpointError as error:
        raise CheckpointError(f"{name} is no checkpoint: {error}.") from None
    except Exception as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        # The archive module raises a dozen types for damaged archives, and seeks to where they say.
        raise CheckpointError(
            f"{name} is not a complete checkpoint ({size} bytes; {type(error).__name__}: {_first_line(error)}). It was "
            "cut short, or changed since it was written."
        ) from None


def read_checkpoint(path: Path) -> Any:
    """Return the content of a file of `torch.save`, on the CPU.

    Nothing in the file is run: it may hold tensors, numbers, strings, and lists, tuples and dictionaries of them.

    Raises:
        CheckpointError: The file is not complete, or holds something else.
        OSError: It cannot be read.
    """
    check_complete(path)
    try:
        content = torch.load(os.fspath(path), map_location="cpu", pickle_module=plain_pickle, weights_only=False)
        for tensor in _tensors(content):
            _check_tensor(tensor)
    except CheckpointError as error:
        raise CheckpointError(f"{os.fspath(path)} is not safe to read: {error}") from None
    except Exception as error:
        raise CheckpointError(
            f"{os.fspath(path)} holds no checkpoint: {type(error).__name__}: {_first_line(error)}"
        ) from error
    return content


def _check_entries(entries: List[zipfile.ZipInfo], size: int) -> None:
    names = [entry.filename for entry in entries]
    prefixes = {name.partition("/")[0] for name in names}
    if len(prefixes) != 1 or not all("/" in name for name in names):
        raise CheckpointError("its parts do not lie in one directory, as torch.save puts them")
    if len({name.lower() for name in names}) != len(names):
        raise CheckpointError("two of its parts have the same name")
    (prefix,) = prefixes
    if f"{prefix}/data.pkl" not in names or f"{prefix}/constants.pkl" in names:
        raise CheckpointError("it was not written by torch.save")
    if any(entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size for entry in entries):
        raise CheckpointError("its parts are compressed, which torch.save does not do")
    if sum(entry.file_size for entry in entries) > size:
        raise CheckpointError("its parts claim to be larger than the file")


def _tensors(content: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of a checkpoint; refuse one of excessive size or depth."""
    waiting = [(content, 0)]
    for _ in range(_LARGEST):
        if not waiting:
            return
        item, depth = waiting.pop()
        if depth > _DEEPEST:
            raise CheckpointError(f"its values nest more than {_DEEPEST} levels deep.")
        if isinstance(item, torch.Tensor):
            yield item
        elif isinstance(item, dict):
            waiting += [(value, depth + 1) for value in (*item.values(), *getattr(item, "__dict__", {}).values())]
        elif isinstance(item, (list, tuple, set)):
            waiting += [(value, depth + 1) for value in item]
    raise CheckpointError(f"it stands for more than {_LARGEST} values.")


def _check_tensor(tensor: torch.Tensor) -> None:
    if tensor.layout is not torch.strided:
        raise CheckpointError(f"a tensor in it has the layout {tensor.layout}.")
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise CheckpointError(f"a tensor in it claims the shape {tuple(tensor.shape)}, but its data is not there.")


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else "no further message"
