"""Options given as JSON."""

from __future__ import annotations

import json

import pytest

from ignite_ipu.emulator.enums import CommGroupType, OutputMode, ReductionType
from ignite_ipu.emulator.options import Options


def test_keys_are_setters_and_values_their_arguments() -> None:
    options = Options()
    text = json.dumps(
        {
            "deviceIterations": 4,
            "Training.gradientAccumulation": 8,
            "_Popart.set": ["autoRecomputation", 3],
            "outputMode": ["OutputMode.EveryN", 2],
            "Training.accumulationAndReplicationReductionType": "ReductionType.Sum",
            "setAvailableMemoryProportion": {"IPU0": 0.3},
            "disableModuleNamescope": [],
        }
    )
    assert options.from_json(text) is options
    assert (options.device_iterations, options.Training.gradient_accumulation) == (4, 8)
    assert options._Popart._value("autoRecomputation") == 3
    assert (options.output_mode, options.output_return_period) == (OutputMode.EveryN, 2)
    assert options.Training.accumulation_and_replication_reduction_type is ReductionType.Sum
    assert options.available_memory_proportion == {0: 0.3}
    assert options._module_namescope_enabled is False


def test_the_order_of_the_object_is_the_order_of_the_calls() -> None:
    options = Options().from_json('{"replicationFactor": 4, "inputReplicaGrouping": [2, "CommGroupType.Orthogonal"]}')
    assert (options.input_group_size, options.input_cgt) == (2, CommGroupType.Orthogonal)


@pytest.mark.parametrize("text", ["OutputMode.Each", "os.path", "enum.Enum", "a.b.c", "OutputMode.", "json.tool"])
def test_text_that_names_no_member_stays_text(text: str) -> None:
    assert Options().from_json(json.dumps({"logDir": text})).log_dir == text


@pytest.mark.parametrize(
    "key",
    [
        "foo",
        "Training.foo",
        "Foo.gradientAccumulation",
        "__class__",
        "Training.__init__",
        "_freeze",
        "_values.clear",
        "device_iterations",
        "Training",
        "clone",
        "set",
        "Training.set",
        "_Popart.options.clear",
        "",
        "Training._popart_options.set",
    ],
)
def test_a_key_that_names_no_setter_is_refused_and_nothing_is_set(key: str) -> None:
    options = Options()
    with pytest.raises(AttributeError, match="Invalid attribute"):
        options.from_json(json.dumps({"deviceIterations": 2, key: []}))
    assert options.device_iterations == 1


def test_the_setters_own_checks_hold() -> None:
    with pytest.raises(AssertionError, match="Unexpected type"):
        Options().from_json('{"deviceIterations": 2.5}')


def test_json_that_is_no_object_is_refused() -> None:
    with pytest.raises(ValueError, match="one object"):
        Options().from_json("[1]")


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("deviceIteration", "deviceIterations"),
        ("gradientAccumulation", "Training.gradientAccumulation"),
        ("Trainng.gradientAccumulation", "Training.gradientAccumulation"),
        ("Training.deviceIterations", "deviceIterations"),
        ("autoRoundNumIpus", "autoRoundNumIPUs"),
        ("_Popart.sett", "_Popart.set"),
    ],
)
def test_a_misspelt_key_gets_a_suggestion(key: str, meant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In JSON, in the variable that every new object reads, and in a file; the suggestion is a setter that there is."""
    options = Options()
    with pytest.raises(AttributeError, match=rf"Invalid attribute {key}: .* Did you mean {meant}\?"):
        options.from_json(json.dumps({key: 1}))
    monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", json.dumps({key: 1}))
    with pytest.raises(AttributeError, match=rf"Did you mean {meant}\?"):
        Options()


def test_a_key_like_no_setter_gets_no_suggestion() -> None:
    with pytest.raises(AttributeError, match=r"of that name\.$"):
        Options().from_json('{"nonsense": 1}')
