"""`poptorch.TensorLocationSettings` and `Options.TensorLocations`."""

from __future__ import annotations

from typing import Any, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignite_ipu.emulator.options import Options, TensorLocationSettings

FLAGS = {
    "useOnChipStorage": "onChip",
    "useReplicatedTensorSharding": "useReplicatedTensorSharding",
    "useIOTilesToLoad": "useIOTilesToLoad",
    "useIOTilesToStore": "useIOTilesToStore",
}
COUNTS = ["minElementsForOffChip", "minElementsForReplicatedTensorSharding"]


def test_nothing_is_stored_until_it_is_said() -> None:
    assert TensorLocationSettings().toDict() == {}


@pytest.mark.parametrize(("method", "name"), FLAGS.items())
def test_flags_are_stored_as_numbers(method: str, name: str) -> None:
    settings = TensorLocationSettings()
    assert getattr(settings, method)() is settings
    assert settings.toDict() == {name: 1}
    assert getattr(settings, method)(False).toDict() == {name: 0}
    with pytest.raises(AssertionError, match=f"{name} takes a bool"):
        getattr(settings, method)(1)


@pytest.mark.parametrize("method", COUNTS)
def test_sizes_are_ints(method: str) -> None:
    settings = TensorLocationSettings()
    assert getattr(settings, method)(1024) is settings
    assert settings.toDict() == {method: 1024}
    with pytest.raises(AssertionError, match=f"{method} takes an int"):
        getattr(settings, method)(1e3)


def test_on_chip_storage_can_be_left_to_the_back_end_again() -> None:
    assert TensorLocationSettings().useOnChipStorage(False).useOnChipStorage(None).toDict() == {}


SETTERS = {
    "location_activation": lambda o, s: o.setActivationLocation(s),
    "location_weight": lambda o, s: o.setWeightLocation(s),
    "location_optimizer": lambda o, s: o.setOptimizerLocation(s),
    "location_accumulator": lambda o, s: o.setAccumulatorLocation(s),
}


@pytest.mark.parametrize(("name", "call"), SETTERS.items())
def test_a_location_is_a_snapshot(name: str, call: Callable[[Any, Any], Any]) -> None:
    locations, settings = Options().TensorLocations, TensorLocationSettings().useOnChipStorage(False)
    assert call(locations, settings) is locations
    settings.useOnChipStorage(True)
    assert locations(name) == {"onChip": 0}
    with pytest.raises(AssertionError, match="TensorLocationSettings"):
        call(locations, {"onChip": 0})


@given(st.integers(-300, 300))
def test_io_tiles_are_even_and_between_32_and_192(tiles: int) -> None:
    locations = Options().TensorLocations
    if tiles >= 32 and tiles <= 192 and tiles / 2 == tiles // 2:
        assert locations.numIOTiles(tiles)("numIOTiles") == tiles
    else:
        with pytest.raises(AssertionError, match="must be an even number between 32 and 192"):
            locations.numIOTiles(tiles)


def test_io_tiles_are_an_int() -> None:
    with pytest.raises(AssertionError, match="takes an int"):
        Options().TensorLocations.numIOTiles(64.0)  # type: ignore[arg-type]
