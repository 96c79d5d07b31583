"""`Options._Popart`: settings checked when a model compiles."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from ignite_ipu.emulator.errors import Error
from ignite_ipu.emulator.options import Options
from ignite_ipu.emulator.options.compile_checks import check_at_compile
from ignite_ipu.emulator.options.popart_enums import ENUMERATIONS, SETTINGS


def test_it_starts_with_two_settings() -> None:
    assert Options()._Popart.options == {
        "instrumentWithHardwareCycleCounter": False,
        "rearrangeAnchorsOnHost": False,
    }
    assert type(Options()._Popart.options) is dict


def test_settings_have_the_names_they_were_given_under() -> None:
    """Those of other methods, too; a copy has its own."""
    options = Options().updatableNamedBuffers(["mean"]).enableSyntheticData(True)
    options.Training.setAutomaticLossScaling(True)
    options._Popart.set("autoRecomputation", 3)
    expected = {
        "autoRecomputation": 3,
        "updatableNamedBuffers": ["mean"],
        "syntheticDataMode": 2,
        "automaticLossScalingSettings.enabled": True,
    }
    assert {key: options._Popart.options[key] for key in expected} == expected
    copied = options.clone()
    copied._Popart.set("autoRecomputation", 1)
    assert options._Popart.options["autoRecomputation"] == 3


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("enableOutlining", True),
        ("autoRecomputation", 3),
        ("outlineThreshold", 10.0),
        ("cachePath", "here"),
        ("saveInitializersToFile", "weights.bin"),
        ("enableExplicitIR", True),
        ("accumulateOuterFragmentSettings.excludedVirtualGraphs", ["0"]),
        ("accumulateOuterFragmentSettings.excludedVirtualGraphs", [0, 1]),
        ("hardwareInstrumentations", {0, 1}),
        ("dotChecks", {"Fwd0"}),
        ("dotChecks", ("Fwd0", 1)),
        ("whatever its name", []),
        ("whatever its name", set()),
    ],
)
def test_a_known_setting_compiles(key: str, value: Any) -> None:
    options = Options()
    assert options._Popart.set(key, value) is options._Popart
    options._Popart.setPatterns({"InPlace": False}, level=1).setEngineOptions({"debug.retainDebugInformation": "true"})
    check_at_compile(options, training=True)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("enableOutlinig", True, "Unknown bool option enableOutlinig"),
        ("enableOutlining", 1, "Unknown int option enableOutlining .*: it is a bool"),
        ("outlineThreshold", 10, "Unknown int option outlineThreshold .*: it is a float"),
        ("dotChecks", "Fwd0", "Unknown str option dotChecks"),
        ("dotChecks", ["Fwd0", 1.5], "Don't know how to convert 1.5, of type float, in the value of option dotChecks"),
        ("noSuchList", [1], "Unknown list option noSuchList"),
        ("autoRecomputation", None, "Unknown value type NoneType"),
        ("autoRecomputation", ENUMERATIONS["RecomputationType"](1), "Unknown value type RecomputationType"),
        ("autoRecomputation", 5, r"Value for autoRecomputation out of range: 5\..*RecomputationType has 0 \(NoRecom"),
        ("syntheticDataMode", 4, "Value for syntheticDataMode out of range"),
        ("hardwareInstrumentations", {0, 2}, "Value for hardwareInstrumentations out of range: 2"),
        ("enableVariablesCaching", True, "Unknown bool option enableVariablesCaching"),
    ],
)
def test_an_unknown_setting_passes_until_a_model_compiles(key: str, value: Any, message: str) -> None:
    options = Options()
    options._Popart.set(key, value)
    with pytest.raises(Error, match=message):
        check_at_compile(options, training=True)


@pytest.mark.parametrize(
    ("patterns", "level"), [([], 2), ({"InPlace": 1}, 2), ({1: True}, 2), ({"InPlace": True}, "2"), (None, 2)]
)
def test_patterns_are_switched_by_name(patterns: Any, level: Any) -> None:
    with pytest.raises(AssertionError, match="setPatterns"):
        Options()._Popart.setPatterns(patterns, level)


def test_engine_options_are_replaced_as_a_whole() -> None:
    popart = Options()._Popart.setEngineOptions({"a": "1"}).setEngineOptions({"b": "2"})
    assert popart._value("engineOptions") == {"b": "2"}
    with pytest.raises(AssertionError, match="engineOptions takes a dict of strings by name"):
        popart.setEngineOptions({"a": 1})  # type: ignore[dict-item]


def test_levels_of_patterns_are_checked_when_a_model_compiles() -> None:
    options = Options()
    options._Popart.setPatterns({"TiedGather": True}, level=4)
    with pytest.raises(Error, match="Value for patterns_level out of range"):
        check_at_compile(options, training=True)


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_value_of_an_enumeration_compiles(setting: str) -> None:
    for member in SETTINGS[setting]:
        options = Options()
        options._Popart.set(setting, [int(member)] if setting == "hardwareInstrumentations" else int(member))
        check_at_compile(options, training=True)


def test_enumerations_are_as_in_popart() -> None:
    """Members have names and values, equal no ints, and some have two names."""
    mode = ENUMERATIONS["SyntheticDataMode"]
    normal: Any = mode["RandomNormal"]
    assert (int(normal), normal.name, normal.value, str(normal)) == (
        2,
        "RandomNormal",
        2,
        "SyntheticDataMode.RandomNormal",
    )
    assert normal != 2 and mode(2) is normal and pickle.loads(pickle.dumps(normal)) is normal
    context = ENUMERATIONS["BatchSerializationTransformContext"]
    assert context["Forward"] is context["Fwd"] and int(context["Backward"]) == 1
    assert int(getattr(ENUMERATIONS["CommGroupType"], "None")) == 3
