"""The dictionary all options are: fixed names, fixed types, freezing, copies."""

from __future__ import annotations

import copy
import pickle

import pytest

from ignite_ipu.emulator.enums import OutputMode
from ignite_ipu.emulator.options.guarded import OptionsDict


@pytest.fixture
def options() -> OptionsDict:
    return OptionsDict(batches=1, name="a", flag=False)


def test_values_are_attributes_items_of_a_call_and_in_the_repr(options: OptionsDict) -> None:
    options.set(batches=3)
    assert options.batches == options("batches") == 3
    assert repr(options) == "OptionsDict(batches=3, name='a', flag=False)"


def test_assigning_an_attribute_is_setting_it(options: OptionsDict) -> None:
    options.batches = 2
    assert options.toDict() == {"batches": 2, "name": "a", "flag": False}


def test_an_unknown_name_is_listed_with_the_known_ones(options: OptionsDict) -> None:
    with pytest.raises(AssertionError, match=r"Invalid option batch, valid options are \['batches', 'flag', 'name'\]"):
        options.set(batch=1)
    with pytest.raises(AssertionError, match="Invalid option"):
        options.batch = 1
    with pytest.raises(AssertionError, match="Invalid option"):
        options("batch")
    with pytest.raises(AttributeError, match="Invalid attribute batch"):
        _ = options.batch


def test_private_names_cannot_be_created(options: OptionsDict) -> None:
    with pytest.raises(AttributeError, match="Invalid private attribute"):
        options._mine = 1
    with pytest.raises(AttributeError, match="Invalid private attribute"):
        _ = options._mine


@pytest.mark.parametrize("value", [2.0, "2", None])
def test_a_value_keeps_its_type(options: OptionsDict, value: object) -> None:
    with pytest.raises(AssertionError, match=r"Unexpected type .* for option batches: expected int"):
        options.set(batches=value)


def test_a_bool_passes_for_an_int_and_then_only_a_bool_does(options: OptionsDict) -> None:
    options.batches = True
    with pytest.raises(AssertionError, match="Unexpected type int"):
        options.batches = 1
    options.batches = False


def test_an_enumerated_int_passes_for_an_int(options: OptionsDict) -> None:
    options.batches = OutputMode.All
    assert options.batches == 2


def test_an_int_is_no_bool(options: OptionsDict) -> None:
    with pytest.raises(AssertionError, match="Unexpected type"):
        options.flag = 1


def test_names_can_be_created_and_then_keep_their_type(options: OptionsDict) -> None:
    assert not options.exists("seed")
    options.createOrSet(seed=3)
    assert options.exists("seed")
    with pytest.raises(AssertionError, match="Unexpected type"):
        options.createOrSet(seed="3")


def test_deleting_is_silent_and_ignores_freezing(options: OptionsDict) -> None:
    options._freeze()
    options.deleteIfExists("name")
    options.deleteIfExists("name")
    assert not options.exists("name")


def test_frozen_values_do_not_change(options: OptionsDict) -> None:
    options.checkIsFrozen()
    options._freeze()
    for change in (lambda: options.set(batches=2), lambda: options.createOrSet(other=2), options.checkIsFrozen):
        with pytest.raises(AttributeError, match="Can't modify frozen Options"):
            change()
    with pytest.raises(AttributeError, match=r"frozen Options \(batches\)"):
        options.batches = 2
    assert options.batches == 1


def test_a_deep_copy_is_not_frozen_and_the_other_copies_are(options: OptionsDict) -> None:
    options._freeze()
    deep = copy.deepcopy(options)
    deep.batches = 5
    assert options.batches == 1
    for duplicate in (copy.copy(options), pickle.loads(pickle.dumps(options))):
        assert duplicate.toDict() == options.toDict()
        with pytest.raises(AttributeError, match="frozen"):
            duplicate.batches = 5


def test_merging_refuses_names_that_are_in_both(options: OptionsDict) -> None:
    assert options.update({"other": 1}) == {"other": 1, "batches": 1, "name": "a", "flag": False}
    with pytest.raises(AssertionError, match=r"some keys in common: \['name'\]"):
        options.update({"name": "b"})
