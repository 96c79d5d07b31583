"""A file of Python as it lies on disk: its text, and the details for writing it back unchanged."""

from __future__ import annotations

import codecs
import io
import os
import tokenize
from dataclasses import dataclass, field
from typing import List, Optional, Tuple, Union

from ignite_ipu.errors import SourceError
from ignite_ipu.migration.source.notebook import Notebook

MAXIMUM_BYTES = 10 * 1024 * 1024


@dataclass(frozen=True)
class Source:
    """One file, as the user named it: its Python with the line ends it has on disk, of a notebook all code cells.

    `data` are its bytes, which it must still have when it is replaced.
    """

    path: str
    text: str
    encoding: str = "utf-8"
    byte_order_mark: bool = False
    notebook: Optional[Notebook] = field(default=None, repr=False)
    data: Optional[bytes] = field(default=None, repr=False)

    def locate(self, line: int) -> Tuple[Optional[int], int]:
        """Return the notebook cell (None for a plain file) and the line in it of a line of `text`."""
        if self.notebook is None:
            return None, line
        return self.notebook.locate(line)

    def encode(self, text: str) -> bytes:
        """Return the file's new bytes with `text` in place of its Python.

        Its encoding may lack a character of it (`UnicodeEncodeError`), and cells may not be told apart (`SourceError`).
        """
        if self.notebook is not None:
            text = self.notebook.replace(text)
        data = text.encode(self.encoding)
        return codecs.BOM_UTF8 + data if self.byte_order_mark else data


def read_source(path: Union[str, os.PathLike[str]]) -> Source:
    """Read a `.py` or `.ipynb` file.

    Raises:
        SourceError: The file is too large, binary, not in the encoding it declares, or no notebook; the message names
            the reason.
        OSError: The file cannot be opened.
    """
    return decode_source(os.fspath(path), read_bytes(os.fspath(path)))


def read_bytes(path: str) -> bytes:
    """Return the content of a file of a size that source files have; raises as `read_source`."""
    if not os.path.isfile(path):
        raise SourceError("is not a regular file")
    if os.path.getsize(path) > MAXIMUM_BYTES:
        raise SourceError(f"is larger than {MAXIMUM_BYTES // (1024 * 1024)} MiB; source files are not")
    with open(path, "rb") as file:
        return file.read()


def decode_source(path: str, data: bytes) -> Source:
    """Turn a file's bytes into its text; raises as `read_source`."""
    if b"\0" in data:
        raise SourceError("contains NUL bytes: it is a binary file or not in an encoding Python reads")
    if path.endswith(".ipynb"):
        notebook = Notebook.parse(data)
        return Source(path, notebook.text, "utf-8", data.startswith(codecs.BOM_UTF8), notebook, data)
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    except SyntaxError as error:
        if "declaration" not in str(error.msg):
            raise SourceError(f"has no usable encoding: {error.msg}") from None
        # There is none in the first lines and they are not UTF-8; decoding them names the byte.
        encoding = "utf-8"
    marked = data.startswith(codecs.BOM_UTF8)
    body = data[len(codecs.BOM_UTF8) :] if marked else data
    encoding = "utf-8" if encoding == "utf-8-sig" else encoding
    try:
        text = body.decode(encoding)
    except UnicodeDecodeError as error:
        line = body.count(b"\n", 0, error.start) + 1
        raise SourceError(
            f"byte 0x{body[error.start]:02x} is not valid {encoding}; declare the encoding in the first line, "
            "for example `# -*- coding: latin-1 -*-`",
            line,
        ) from None
    return Source(path, text, encoding, marked, None, data)


def split_lines(text: str) -> List[str]:
    """Split at the line ends Python knows (and not, as str.splitlines does, at form feeds and the like)."""
    return io.StringIO(text, newline=None).read().split("\n")
