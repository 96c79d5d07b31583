"""Checkpoints are checked byte by byte before they are believed, and read without running anything in them."""

from __future__ import annotations

import errno
import os
import zipfile
from typing import Any, Dict, Iterator, List, Set, Union

import torch

from ignite_ipu.checkpoints import plain_pickle
from ignite_ipu.checkpoints.pickle_scan import scan_pickle
from ignite_ipu.errors import CheckpointError

__all__ = ["check_complete", "read_checkpoint"]

Path = Union[str, "os.PathLike[str]"]

_CHUNK = 1 << 20
_LARGEST_PICKLE = 256 << 20


def check_complete(path: Path) -> None:
    """Refuse a file that is not a whole checkpoint: cut short, changed, or of another kind.

    Raises:
        CheckpointError: The message says what is wrong with it.
        OSError: It cannot be read.
    """
    _check(path)


def read_checkpoint(path: Path) -> Any:
    """Return what a file of `torch.save` holds, on the CPU.

    Memory is bounded by a small multiple of the file's size. Nothing in the file is run: it may hold tensors, numbers,
    strings, and lists, tuples and dictionaries of them.

    Raises:
        CheckpointError: The file is not complete, or holds something else.
        OSError: It cannot be read.
    """
    pickled = _check(path)
    try:
        scan_pickle(pickled)
        content = _load(os.fspath(path))
        for tensor in _tensors(content):
            _check_tensor(tensor)
    except CheckpointError as error:
        raise CheckpointError(f"{os.fspath(path)} is not safe to read: {error}") from None
    except Exception as error:
        raise CheckpointError(
            f"{os.fspath(path)} holds no checkpoint: {type(error).__name__}: {_first_line(error)}"
        ) from error
    return content


def _load(name: str) -> Any:
    if plain_pickle.is_needed():
        return torch.load(name, map_location="cpu", pickle_module=plain_pickle, weights_only=False)
    return torch.load(name, map_location="cpu", weights_only=True)


def _check(path: Path) -> bytes:
    """Check the whole file and return the pickle in it."""
    name = os.fspath(path)
    size = os.stat(name).st_size
    try:
        with open(name, "rb") as file, zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            _check_entries(entries, size)
            pickled = b""
            for entry in entries:
                is_pickle = entry.filename.endswith("/data.pkl")
                if is_pickle and entry.file_size > _LARGEST_PICKLE:
                    raise CheckpointError(f"its structure alone takes {entry.file_size} bytes")
                with archive.open(entry) as stream:
                    # Reading to the end compares the checksum.
                    if is_pickle:
                        pickled = stream.read()
                    while stream.read(_CHUNK):
                        pass
            return pickled
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


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    seen: Set[int] = set()
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, torch.Tensor):
            yield item
        elif isinstance(item, dict):
            waiting += list(item.values())
            attributes: Dict[str, Any] = getattr(item, "__dict__", {})
            waiting += list(attributes.values())
        elif isinstance(item, (list, tuple, set)):
            waiting += list(item)


def _check_tensor(tensor: torch.Tensor) -> None:
    if tensor.layout is not torch.strided:
        raise CheckpointError(f"a tensor in it has the layout {tensor.layout}.")
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise CheckpointError(f"a tensor in it claims the shape {tuple(tensor.shape)}, but its data is not there.")


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else "no further message"
