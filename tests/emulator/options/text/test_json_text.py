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
