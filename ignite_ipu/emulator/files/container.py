"""A file of named sections that is checked when it is read: what executables and cache entries are stored in.

The layout is: a magic line, the length of the header (8 bytes, little-endian), the SHA-256 of the header (32 bytes),
the header as JSON, and the sections one after the other. The header gives the size and the SHA-256 of each section, and
type and shape where a section is a tensor. Nothing is ever unpickled here, and nothing is read that the file's own size
does not allow for, so a damaged or hostile file ends in `DamagedFile`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import struct
from typing import Any, BinaryIO, Dict, List, Mapping, NamedTuple, Tuple, Union

import torch

LARGEST_HEADER = 64 * 2**20
_LENGTH = struct.Struct("<Q")
_DIGEST_BYTES = 32

DTYPES: Dict[str, torch.dtype] = {
    str(dtype)[len("torch.") :]: dtype
    for dtype in (
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float64,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
        torch.complex64,
        torch.complex128,
    )
}

Section = Union[bytes, torch.Tensor]


class DamagedFile(Exception):
    """A file is not what it claims to be, or not all of it is there."""


class Container(NamedTuple):
    """What a file holds, every byte of it checked.

    Attributes:
        header: What the writer put there.
        data: The sections that are bytes.
        tensors: The sections that are tensors.
    """

    header: Dict[str, Any]
    data: Dict[str, bytes]
    tensors: Dict[str, torch.Tensor]


class _Entry(NamedTuple):
    name: str
    size: int
    digest: str
    dtype: str
    shape: Tuple[int, ...]


def write(path: str, magic: bytes, header: Mapping[str, Any], sections: Mapping[str, Section]) -> None:
    """Write a file in one step: under its name there is the old content or the new, never a part.

    Args:
        magic: What the file starts with; tells its kind and version.
        header: Anything that JSON can hold.
        sections: Bytes or tensors by name.

    Raises:
        OSError: The file cannot be written.
    """
    contents = {name: _bytes(section) for name, section in sections.items()}
    entries = [
        [
            name,
            len(contents[name]),
            hashlib.sha256(contents[name]).hexdigest(),
            str(section.dtype)[len("torch.") :] if isinstance(section, torch.Tensor) else "",
            list(section.shape) if isinstance(section, torch.Tensor) else [],
        ]
        for name, section in sections.items()
    ]
    text = json.dumps({"header": dict(header), "sections": entries}, allow_nan=False).encode()
    directory = os.path.dirname(os.path.abspath(path))
    temporary = os.path.join(directory, f".{os.path.basename(path)}-{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(magic + _LENGTH.pack(len(text)) + hashlib.sha256(text).digest() + text)
            for content in contents.values():
                file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def read(path: str, magic: bytes) -> Container:
    """Read and check a whole file.

    Raises:
        DamagedFile: It is of another kind, cut short, changed, or has something behind its end.
        OSError: It cannot be read.
    """
    with open(path, "rb") as file:
        header, entries = _read_header(file, magic)
        data: Dict[str, bytes] = {}
        tensors: Dict[str, torch.Tensor] = {}
        for entry in entries:
            content = bytearray(entry.size)
            if file.readinto(content) != entry.size or hashlib.sha256(content).hexdigest() != entry.digest:
                raise DamagedFile(f"section {entry.name!r} is damaged")
            if entry.dtype:
                tensors[entry.name] = _tensor(entry, content)
            else:
                data[entry.name] = bytes(content)
    return Container(header, data, tensors)


def read_header(path: str, magic: bytes) -> Dict[str, Any]:
    """Read and check the header alone.

    Raises:
        DamagedFile: The file is of another kind, its header is damaged, or its size is not what the header says.
        OSError: It cannot be read.
    """
    with open(path, "rb") as file:
        return _read_header(file, magic)[0]


def _read_header(file: BinaryIO, magic: bytes) -> Tuple[Dict[str, Any], List[_Entry]]:
    size = os.fstat(file.fileno()).st_size
    if file.read(len(magic)) != magic:
        raise DamagedFile("it does not start as such files do")
    fixed = file.read(_LENGTH.size + _DIGEST_BYTES)
    start = len(magic) + _LENGTH.size + _DIGEST_BYTES
    if len(fixed) < _LENGTH.size + _DIGEST_BYTES:
        raise DamagedFile("it ends within its header")
    length = _LENGTH.unpack(fixed[: _LENGTH.size])[0]
    if length > min(LARGEST_HEADER, size - start):
        raise DamagedFile(f"its header claims {length} bytes")
    text = file.read(length)
    if hashlib.sha256(text).digest() != fixed[_LENGTH.size :]:
        raise DamagedFile("its header is damaged")
    try:
        whole = json.loads(text)
        header, entries = whole["header"], [_entry(*fields) for fields in whole["sections"]]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DamagedFile(f"its header makes no sense ({type(error).__name__})") from error
    if not isinstance(header, dict) or len({entry.name for entry in entries}) != len(entries):
        raise DamagedFile("its header makes no sense")
    if start + length + sum(entry.size for entry in entries) != size:
        raise DamagedFile(f"it has {size} bytes, which is not what its header says")
    return header, entries


def _entry(name: Any, size: Any, digest: Any, dtype: Any, shape: Any) -> _Entry:
    numbers = [size, *shape]
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError("a size is no number")
    if not all(isinstance(text, str) for text in (name, digest, dtype)) or (dtype and dtype not in DTYPES):
        raise ValueError("an unknown type")
    return _Entry(name, size, digest, dtype, tuple(shape))


def _bytes(section: Section) -> bytes:
    if isinstance(section, bytes):
        return section
    flat = section.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def _tensor(entry: _Entry, content: bytearray) -> torch.Tensor:
    dtype = DTYPES[entry.dtype]
    count = 1
    for extent in entry.shape:
        count *= extent
    if count * torch.empty(0, dtype=dtype).element_size() != entry.size:
        raise DamagedFile(f"section {entry.name!r} is no {entry.dtype} tensor of shape {entry.shape}")
    if not count:
        return torch.empty(entry.shape, dtype=dtype)
    return torch.frombuffer(content, dtype=dtype).reshape(entry.shape)
