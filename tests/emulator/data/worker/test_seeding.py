"""Seeding torch before iterating fixes the order, in whichever process it is drawn."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from ignite_ipu.emulator.data import AsynchronousDataAccessor, DataLoader
from ignite_ipu.emulator.data.worker.seeding import RandomState
from ignite_ipu.emulator.enums import DataLoaderMode, SharingStrategy
from ignite_ipu.emulator.options import Options

FORK = {"sharing_strategy": SharingStrategy.Fork}


@pytest.fixture
def make():
    made = []

    def loader(mode=DataLoaderMode.Async, **arguments):
        options = {} if mode == DataLoaderMode.Sync else {"async_options": FORK}
        made.append(
            DataLoader(
                Options(),
                TensorDataset(torch.arange(12)),
                batch_size=3,
                shuffle=True,
                mode=mode,
                **options,
                **arguments,
            )
        )
        return made[-1]

    yield loader
    for one in made:
        one.terminate()


def rows(loader):
    return [item[0].tolist() for item in loader]


def test_epochs_go_on_as_synchronous_ones_do(make):
    torch.manual_seed(1)
    sync = make(DataLoaderMode.Sync)
    expected = [rows(sync), rows(sync)]
    torch.manual_seed(1)
    loader = make()
    assert [rows(loader), rows(loader)] == expected
    assert expected[0] != expected[1]


@pytest.mark.parametrize("seed", [1, 2])
def test_seeding_before_iterating_gives_torchs_order_for_that_seed(make, seed):
    sync = make(DataLoaderMode.Sync)
    torch.manual_seed(seed)
    expected = rows(sync)
    torch.manual_seed(1)
    loader = make()
    torch.manual_seed(seed)
    assert rows(loader) == expected, "although the first item was loaded before"
    torch.manual_seed(seed)
    assert rows(loader) == expected, "although the next epoch had begun"
    torch.manual_seed(seed)
    next(iter(loader))
    torch.manual_seed(seed)
    assert rows(loader) == expected, "also in the middle of one"


def test_seeding_twice_before_an_item_is_taken_counts_once(make):
    loader = make()
    for seed in (3, 4, 5):
        torch.manual_seed(seed)
        iter(loader)
    found = next(loader._accessor)[0].tolist()
    torch.manual_seed(5)
    assert found == rows(make(DataLoaderMode.Sync))[0]


def test_drawing_numbers_does_not_disturb_what_was_loaded_in_advance(make):
    torch.manual_seed(7)
    loader = make()
    expected = [rows(loader), rows(loader)]
    torch.manual_seed(7)
    loader = make()
    torch.rand(3)
    first = rows(loader)
    torch.rand(3)
    assert [first, rows(loader)] == expected


def test_a_generator_of_its_own_is_watched_instead(make):
    generator = torch.Generator().manual_seed(4)
    expected = rows(make(DataLoaderMode.Sync, generator=torch.Generator().manual_seed(4)))
    loader = make(generator=generator)
    torch.manual_seed(9)
    assert rows(loader) == expected
    assert rows(loader) != expected
    generator.manual_seed(4)
    assert rows(loader) == expected


def test_iterating_anything_but_a_loader_leaves_the_callers_generator_alone():
    accessor = AsynchronousDataAccessor([torch.ones(1)], **FORK)
    state = torch.get_rng_state()
    list(accessor)
    assert torch.equal(torch.get_rng_state(), state)
    accessor.terminate()


def test_a_captured_state_holds_all_generators():
    state = RandomState.capture()
    drawn = torch.rand(1).item(), random.random(), np.random.rand()
    state.restore()
    assert (torch.rand(1).item(), random.random(), np.random.rand()) == drawn
