"""Values in a file that is checked when it is read: the format of executables and cache entries.

The layout is: a magic line, the SHA-256 of the rest, the length of a JSON text (8 bytes, little-endian), the text, and
the bytes of the tensors that it names. Nothing is unpickled here, and nothing is made that the file's own size does not
allow for, so a damaged or hostile file ends in `DamagedFile`.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import json
import os
import secrets
import struct
from typing import Any, Callable, Dict, Tuple

import torch

from ignite_ipu.emulator import enums

_LENGTH = struct.Struct("<Q")
_DIGEST_BYTES = 32

DTYPES: Dict[str, torch.dtype] = {
    str(dtype): dtype
    for dtype in (
        *(torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.complex64, torch.complex128),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    )
}

# How values that JSON lacks become a list, and the list such a value.
_KINDS: Dict[str, Tuple[type, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "tuple": (tuple, list, tuple),
    "size": (torch.Size, list, torch.Size),
    "set": (set, lambda items: sorted(items, key=repr), set),
    "frozenset": (frozenset, lambda items: sorted(items, key=repr), frozenset),
    "dict": (dict, lambda items: [list(pair) for pair in items.items()], dict),
    "dtype": (torch.dtype, lambda dtype: [str(dtype)], lambda names: DTYPES[names[0]]),
}


class DamagedFile(Exception):
    """A file is of another kind than it claims, or incomplete."""


class NotPlain(TypeError):
    """A value cannot be written as data: rebuilding it would take code of its own class."""


def write(path: str, magic: bytes, value: Any) -> None:
    """Write a file in one step: under its name there is the old content or the new, never a part.

    The `magic` line names its kind and version. The value is made of None, numbers, strings, bytes, dtypes, PopTorch's
    enumerations, tensors (meta ones are kept as shapes), and containers of these: lists, tuples, sets and dictionaries.
    Others raise `NotPlain`.
    """
    data = bytearray()
    text = json.dumps(encode(value, data)).encode()
    content = b"".join((_LENGTH.pack(len(text)), text, data))
    directory = os.path.dirname(os.path.abspath(path))
    temporary = os.path.join(directory, f".{os.path.basename(path)}-{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.writelines((magic, hashlib.sha256(content).digest(), content))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def read(path: str, magic: bytes) -> Any:
    """Return the value in a file, every byte of which is checked; raises `DamagedFile` with the problem."""
    with open(path, "rb") as file:
        if file.read(len(magic)) != magic:
            raise DamagedFile("it does not start as such files do")
        digest, content = file.read(_DIGEST_BYTES), file.read()
    if hashlib.sha256(content).digest() != digest:
        raise DamagedFile("it is damaged, or not all of it is there")
    try:
        end = _LENGTH.size + _LENGTH.unpack_from(content)[0]
        return decode(json.loads(content[_LENGTH.size : end]), content[end:])
    except Exception as error:  # from a crafted text
        raise DamagedFile(f"it makes no sense ({type(error).__name__}: {error})") from error


def encode(value: Any, data: bytearray) -> Any:
    """Return a value of `write` as JSON can hold it, and add the other parts to `data`."""
    kind = type(value)
    if value is None or kind in (bool, str, int, float):
        return value
    if kind is list:
        return [encode(item, data) for item in value]
    for name, (known, parts, _) in _KINDS.items():
        if kind is known:
            return {name: encode(parts(value), data)}
    if isinstance(value, enum.Enum) and getattr(enums, kind.__name__, None) is kind:
        return {"enum": [kind.__name__, value.name]}
    if kind is bytes:
        data += value
        return {"bytes": [len(data) - len(value), len(data)]}
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        what = [str(value.dtype), list(value.shape)]
        if value.is_meta:
            return {"meta": what}
        flat = value.detach().contiguous().reshape(-1)
        return {"tensor": [*what, encode(flat.view(torch.uint8).numpy().tobytes() if len(flat) else b"", data)]}
    raise NotPlain(f"a {kind.__module__}.{kind.__qualname__}")


def decode(text: Any, data: bytes) -> Any:
    """Return the value that `encode` was given; any error means that it was given none."""
    if isinstance(text, list):
        return [decode(item, data) for item in text]
    if not isinstance(text, dict):
        return text
    ((kind, parts),) = text.items()
    if kind in _KINDS:
        return _KINDS[kind][2](decode(parts, data))
    if kind == "enum":
        found = getattr(enums, parts[0])
        if not issubclass(found, enum.Enum):
            raise ValueError(f"{parts[0]!r} is no enumeration")
        return found[parts[1]]
    if kind == "bytes":
        start, end = parts
        return data[start:end]
    dtype, shape = DTYPES[parts[0]], parts[1]
    if kind == "meta":
        return torch.empty(shape, dtype=dtype, device="meta")
    if kind != "tensor":
        raise ValueError(f"no kind of value is called {kind!r}")
    content = bytearray(decode(parts[2], data))
    return (torch.frombuffer(content, dtype=dtype) if content else torch.empty(0, dtype=dtype)).reshape(shape)
