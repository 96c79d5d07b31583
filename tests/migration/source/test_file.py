"""Files are read in the encoding they declare, and written back in it; other files than Python texts are refused."""

from __future__ import annotations

import codecs

import pytest

from ignite_ipu.errors import SourceError
from ignite_ipu.migration.source.file import decode_source, read_source


@pytest.mark.parametrize(
    ("data", "encoding", "text"),
    [
        (b"x = 1\n", "utf-8", "x = 1\n"),
        ("name = 'Größe'\n".encode(), "utf-8", "name = 'Größe'\n"),
        ("# -*- coding: latin-1 -*-\nname = 'Größe'\n".encode("latin-1"), "iso-8859-1", None),
        ("#!/usr/bin/python\n# vim: set fileencoding=cp1252 :\nname = '€'\n".encode("cp1252"), "cp1252", None),
        (codecs.BOM_UTF8 + b"x = 1\r\n", "utf-8", "x = 1\r\n"),
    ],
)
def test_bytes_come_back(data, encoding, text):
    source = decode_source("code.py", data)
    assert source.encoding == encoding
    assert text is None or source.text == text
    assert source.encode(source.text) == data


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x7fELF\x00\x01", "NUL bytes"),
        ("x = 'ü'".encode("latin-1"), "not valid utf-8; declare the encoding"),
        (b"# coding: klingon\n", "no usable encoding"),
        ("x = 1\n".encode("utf-16"), "NUL bytes"),
    ],
)
def test_what_cannot_be_decoded_is_refused(data, message):
    with pytest.raises(SourceError, match=message):
        decode_source("code.py", data)


def test_the_line_of_a_bad_byte_is_named():
    with pytest.raises(SourceError) as error:
        decode_source("code.py", b"a = 1\nb = 2\nc = '\xe9'\n")
    assert error.value.line == 3


def test_directories_and_pipes_are_no_files(tmp_path):
    with pytest.raises(SourceError, match="not a regular file"):
        read_source(tmp_path)


def test_huge_files_are_refused(tmp_path):
    path = tmp_path / "huge.py"
    with open(path, "wb") as file:
        file.truncate(11 * 1024 * 1024)
    with pytest.raises(SourceError, match="larger than 10 MiB"):
        read_source(path)


def test_a_character_that_the_encoding_lacks_cannot_be_written():
    source = decode_source("code.py", b"# coding: ascii\nx = 1\n")
    with pytest.raises(UnicodeEncodeError):
        source.encode("# coding: ascii\nx = 'ü'\n")
