"""Random states as data: read back exactly, and refused when they are something else."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch

from ignite_ipu.checkpoints import CheckpointError
from ignite_ipu.checkpoints.random_states import (
    read_device_states,
    read_random_states,
    write_device_states,
    write_random_states,
)


def draw():
    return random.random(), random.gauss(0, 1), np.random.normal(), torch.rand(3).tolist()


def test_all_generators_go_on_where_they_were():
    random.gauss(0, 1)  # keeps a second number for the next call
    np.random.normal()
    states = read_random_states()
    first = draw()
    write_random_states(states)
    assert draw() == first


@pytest.mark.parametrize(
    ("states", "entries"),
    [
        ([], []),
        ([None, [1, 2**64 - 1], None], [None, [1, 2**64 - 1], None]),
        ([[0], [1], [0], [1], [1]], [[0], [1], 0, 1, 1]),
    ],
)
def test_states_of_devices_come_back(tmp_path, states, entries):
    """Each state is in the file once."""
    path = tmp_path / "states.json"
    write_device_states(str(path), states)
    assert json.loads(path.read_text()) == entries
    assert read_device_states(str(path)) == states


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[1]",
        '[["1"]]',
        "[[1.5]]",
        "[[-1]]",
        "[[true]]",
        "[[]]",
        "[null, 0]",
        "[[1], 1]",
        "[[1], true]",
        "[" * 100_000,
    ],
)
def test_anything_else_is_refused(tmp_path, text):
    path = tmp_path / "states.json"
    path.write_text(text)
    with pytest.raises(CheckpointError, match=r"states\.json holds no random states of devices"):
        read_device_states(str(path))


def test_a_file_that_is_too_large_is_refused(tmp_path):
    path = tmp_path / "states.json"
    path.write_text("[[1" + " " * (1 << 20) + "]]")
    with pytest.raises(CheckpointError, match="at most 1048576 bytes"):
        read_device_states(str(path))
