"""Values in files: exact round trips, no damaged byte goes unnoticed, and nothing else is made of a crafted one."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ignite_ipu.emulator.enums import OutputMode
from ignite_ipu.emulator.files import container
from ignite_ipu.emulator.files.container import DamagedFile, NotPlain

MAGIC = b"a test\n"
VALUE = {"a": [1, None, "ü"], "x": torch.arange(6).view(2, 3), "y": b"bytes"}


@pytest.fixture
def path(tmp_path):
    path = str(tmp_path / "file")
    container.write(path, MAGIC, VALUE)
    return path


def again(value):
    """Return a value as it comes back from its text and data."""
    data = bytearray()
    text = json.dumps(container.encode(value, data))
    return container.decode(json.loads(text), bytes(data))


@pytest.mark.parametrize("dtype", container.DTYPES.values(), ids=str)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)], ids=str)
def test_tensors_of_every_type_come_back_exactly(tmp_path, dtype, shape):
    value = torch.rand(shape).mul(100).to(dtype)
    container.write(str(tmp_path / "f"), MAGIC, [b"x", value])
    read = container.read(str(tmp_path / "f"), MAGIC)[1]
    assert read.dtype is dtype and read.shape == value.shape and torch.equal(read, value)


def test_a_view_is_written_as_it_looks():
    value = torch.arange(12).view(3, 4).t()[1:]
    assert torch.equal(again(value), value)


def test_a_value_comes_back(path):
    read = container.read(path, MAGIC)
    assert read["a"] == [1, None, "ü"] and read["y"] == b"bytes"
    assert read["x"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_every_flipped_bit_and_every_cut_is_noticed(path):
    """Exhaustively: each byte changed in turn, each length shorter, and one byte more."""
    with open(path, "rb") as file:
        good = file.read()
    damaged = [good[:index] + bytes([good[index] ^ 1 << index % 8]) + good[index + 1 :] for index in range(len(good))]
    damaged += [good[:length] for length in range(len(good))] + [good + b"x"]
    for content in damaged:
        with open(path, "wb") as file:
            file.write(content)
        with pytest.raises(DamagedFile):
            container.read(path, MAGIC)


@pytest.mark.parametrize("claim", [2**64 - 1, 2**40, 10**6])
def test_a_file_cannot_claim_more_than_it_has(path, claim):
    """Though its digest is right: the author of the claim has computed that, too."""
    with open(path, "r+b") as file:
        content = claim.to_bytes(8, "little") + file.read()[len(MAGIC) + 40 :]
        file.seek(len(MAGIC))
        file.write(hashlib.sha256(content).digest() + content)
    with pytest.raises(DamagedFile, match="makes no sense"):
        container.read(path, MAGIC)


def test_an_interrupted_write_leaves_the_old_file(path, monkeypatch):
    def fail(*args):
        raise OSError("disk full")

    monkeypatch.setattr(container.os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        container.write(path, MAGIC, {})
    assert container.read(path, MAGIC)["y"] == b"bytes"
    assert os.listdir(os.path.dirname(path)) == ["file"]


_LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
_KEYS = st.integers() | st.text(max_size=3)
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple) | st.dictionaries(_KEYS, inner, max_size=3)
    ),
    max_leaves=8,
)


@given(_VALUES)
def test_plain_values_come_back_equal_and_of_the_same_type(value):
    assert again(value) == value and repr(again(value)) == repr(value)


def test_plain_values_include_tensors_types_and_enumerations():
    value = {"m": torch.empty(2, 3, dtype=torch.int16, device="meta"), "d": torch.half, "z": torch.Size([2])}
    value["s"] = (frozenset({0, "a"}), {1.5})
    read = again({**value, "o": [OutputMode.All, float("inf")]})
    assert read["s"] == value["s"] and type(read["s"][1]) is set
    assert read["o"] == [OutputMode.All, float("inf")] and type(read["o"][0]) is OutputMode
    assert read["d"] is torch.half and type(read["z"]) is torch.Size
    assert read["m"].is_meta and read["m"].shape == (2, 3) and read["m"].dtype is torch.int16


@pytest.mark.parametrize("value", [object(), {"a": [print]}, st, torch.nn.Linear(1, 1)], ids=lambda v: type(v).__name__)
def test_what_needs_code_is_not_plain(value):
    with pytest.raises(NotPlain):
        container.encode(value, bytearray())


def write_crafted(path, text):
    """Write a file that has the right digest and whatever text."""
    content = len(text).to_bytes(8, "little") + text + b"data"
    with open(path, "wb") as file:
        file.write(MAGIC + hashlib.sha256(content).digest() + content)


_TAGS = st.sampled_from(["tuple", "size", "set", "dict", "dtype", "enum", "meta", "tensor", "bytes", "frozenset"])
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["OutputMode", "All", "torch.float32", "os", "\0"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TAGS, inner, max_size=3),
    max_leaves=10,
)


@given(_JSON)
def test_any_other_data_is_decoded_or_refused_and_nothing_else(tmp_path_factory, text):
    path = str(tmp_path_factory.getbasetemp() / "crafted")
    write_crafted(path, json.dumps(text).encode())
    with contextlib.suppress(DamagedFile):
        container.read(path, MAGIC)


@pytest.mark.parametrize(
    "text",
    [
        '{"enum": ["os", "system"]}',
        '{"enum": ["annotations", "x"]}',
        '{"code": "print()"}',
        '{"tensor": ["torch.float32", [2], {"bytes": [0, 4]}]}',
        '{"tensor": ["torch.float32", [1], {"bytes": [0, 99]}, 1], "set": []}',
        '{"tensor": ["torch.float32", [0, 1000000000000], {"bytes": [0, 4]}]}',
        "[" * 100_000,
        "1 2",
    ],
    ids=lambda text: text[:60],
)
def test_data_that_no_value_was_written_as_is_refused(tmp_path, text):
    write_crafted(tmp_path / "crafted", text.encode())
    with pytest.raises(DamagedFile):
        container.read(str(tmp_path / "crafted"), MAGIC)
