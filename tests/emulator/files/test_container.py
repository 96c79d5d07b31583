"""Files of named sections: exact round trips, and no damaged byte goes unnoticed."""

from __future__ import annotations

import contextlib
import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ignite_ipu.emulator.enums import OutputMode
from ignite_ipu.emulator.files import container
from ignite_ipu.emulator.files.container import DamagedFile
from ignite_ipu.emulator.files.plain_data import NotPlain, decode, encode

MAGIC = b"a test\n"


@pytest.fixture
def path(tmp_path):
    path = str(tmp_path / "file")
    container.write(path, MAGIC, {"a": [1, None, "ü"]}, {"x": torch.arange(6).view(2, 3), "y": b"bytes"})
    return path


@pytest.mark.parametrize("dtype", container.DTYPES.values(), ids=str)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)], ids=str)
def test_tensors_of_every_type_come_back_exactly(tmp_path, dtype, shape):
    value = torch.rand(shape).mul(100).to(dtype)
    container.write(str(tmp_path / "f"), MAGIC, {}, {"value": value})
    read = container.read(str(tmp_path / "f"), MAGIC).tensors["value"]
    assert read.dtype is dtype and read.shape == value.shape and torch.equal(read, value)


def test_a_view_is_written_as_it_looks(tmp_path):
    value = torch.arange(12).view(3, 4).t()[1:]
    container.write(str(tmp_path / "f"), MAGIC, {}, {"value": value})
    assert torch.equal(container.read(str(tmp_path / "f"), MAGIC).tensors["value"], value)


def test_header_and_sections_come_back(path):
    read = container.read(path, MAGIC)
    assert read.header == {"a": [1, None, "ü"]} == container.read_header(path, MAGIC)
    assert read.data == {"y": b"bytes"}
    assert read.tensors["x"].tolist() == [[0, 1, 2], [3, 4, 5]]


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


@pytest.mark.parametrize("claim", [2**64 - 1, 2**40, container.LARGEST_HEADER + 1])
def test_a_header_cannot_claim_more_than_the_file_has(path, claim):
    with open(path, "r+b") as file:
        file.seek(len(MAGIC))
        file.write(claim.to_bytes(8, "little"))
    with pytest.raises(DamagedFile, match=f"claims {claim} bytes"):
        container.read(path, MAGIC)


def test_an_interrupted_write_leaves_the_old_file(path, monkeypatch):
    def fail(*args):
        raise OSError("disk full")

    monkeypatch.setattr(container.os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        container.write(path, MAGIC, {}, {})
    assert container.read(path, MAGIC).data == {"y": b"bytes"}
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
    tensors = {}
    again = decode(encode(value, tensors), tensors)
    assert again == value and repr(again) == repr(value)


def test_plain_values_include_tensors_types_and_enumerations():
    value = {"t": torch.ones(2), "m": torch.empty(2, 3, dtype=torch.int16, device="meta"), "d": torch.half}
    tensors = {}
    value["s"] = (frozenset({0, "a"}), {1.5})
    again = decode(encode({**value, "o": [OutputMode.All, float("inf")]}, tensors), tensors)
    assert again["s"] == value["s"] and type(again["s"][1]) is set
    assert again["o"] == [OutputMode.All, float("inf")] and type(again["o"][0]) is OutputMode
    assert again["t"] is value["t"] and again["d"] is torch.half
    assert again["m"].is_meta and again["m"].shape == (2, 3) and again["m"].dtype is torch.int16


@pytest.mark.parametrize("value", [object(), {"a": [print]}, st, torch.nn.Linear(1, 1)], ids=lambda v: type(v).__name__)
def test_what_needs_code_is_not_plain(value):
    with pytest.raises(NotPlain):
        encode(value, {})


_TAGS = st.sampled_from(
    ["float", "tuple", "set", "dict", "dtype", "enum", "meta", "tensor", "member", "shape", "frozen"]
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["OutputMode", "All", "float32", "0x1p3", "os", "\0"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TAGS, inner, max_size=3),
    max_leaves=10,
)


@given(_JSON)
def test_any_other_data_is_decoded_or_refused_and_nothing_else(data):
    with contextlib.suppress(DamagedFile):
        decode(data, {})


@pytest.mark.parametrize(
    "data",
    [{"enum": "os", "member": "system"}, {"enum": "annotations", "member": "x"}, {"code": "print()"}, {"tensor": "no"}],
    ids=str,
)
def test_data_that_no_value_was_written_as_is_refused(data):
    with pytest.raises(DamagedFile):
        decode(data, {})
