"""Option files: parsed, never executed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignite_ipu.emulator.enums import CommGroupType, Liveness, OutputMode
from ignite_ipu.emulator.options import ConfigFileError, Options

Load = Callable[[str], Options]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def load(text: str, options: Any = None) -> Options:
        path = tmp_path / "poptorch.conf"
        path.write_text(text, encoding="utf-8")
        return (options or Options()).loadFromFile(str(path))

    return load


def test_each_line_is_one_call_without_its_prefix(load: Load) -> None:
    options = load(
        """
        # a comment, and empty lines
        deviceIterations(4)   # a trailing comment

        replicationFactor(replication_factor=2)
        inputReplicaGrouping(2, poptorch.CommGroupType.Orthogonal)
        outputMode(poptorch.OutputMode.EveryN, output_return_period=2)
        Training.gradientAccumulation(16)
        Distributed.configureProcessId(0, 2)
        TensorLocations.numIOTiles(64)
        setAvailableMemoryProportion({"IPU0": 0.6, 'IPU1': 0.25})
        sourceLocationExcludes(["a", "b"])
        enableExecutableCaching(None)
        maxRepeatLogs(None)
        randomSeed(-7)
        _Popart.set("autoRecomputation", 3)
        _Popart.set("dotChecks", {"Fwd0", "Final"})
        connectionType(poptorch.enums.ConnectionType.OnDemand)
        """
    )
    assert (options.device_iterations, options.replication_factor) == (4, 2)
    assert (options.input_group_size, options.input_cgt) == (2, CommGroupType.Orthogonal)
    assert (options.output_mode, options.output_return_period) == (OutputMode.EveryN, 2)
    assert options.Training.gradient_accumulation == 16
    assert options.Distributed.numProcesses == 2
    assert options.available_memory_proportion == {0: 0.6, 1: 0.25}
    assert options._source_location_excludes == ["a", "b"]
    assert options.max_repeat_logs == 2**64 - 1
    assert options.random_seed == -7
    assert options._Popart._value("dotChecks") == {"Fwd0", "Final"}
    assert options.connection_type == 1


def test_options_may_be_chained_assigned_and_calculated(load: Load) -> None:
    """As in a program: a setter returns its owner."""
    options = load(
        """
        replicationFactor(2).deviceIterations(2 * (3 + 1) - 16 // 4).Training.gradientAccumulation(5)
        Training.gradientAccumulation(3).setAutomaticLossScaling(True)
        log_dir = "a"
        """
    )
    assert (options.replication_factor, options.device_iterations, options.log_dir) == (2, 4, "a")
    assert options.Training.gradient_accumulation == 3
    with pytest.raises(AssertionError, match="Unexpected type"):
        load("device_iterations = 2.0")
    with pytest.raises(AssertionError, match="Invalid option"):
        load("deviceIterations = 2")


@pytest.mark.parametrize("line", ["deviceIterations(four)", "deviceIterations(4); deviceIterations(8)"])
def test_a_name_that_means_nothing_is_a_name_error_too(line: str, load: Load) -> None:
    with pytest.raises(NameError) as caught:
        load(line)
    assert isinstance(caught.value, ConfigFileError)


def test_strategies_and_locations_are_made_of_literals(load: Load) -> None:
    options = load(
        "setExecutionStrategy(poptorch.PipelinedExecution(poptorch.Stage('a', 'b').ipu(1), ['c'], \"d\"))\n"
        "TensorLocations.setWeightLocation(poptorch.TensorLocationSettings().useOnChipStorage(False).useIOTilesToLoad())\n"
    )
    assert repr(options._execution_strategy) == "PipelinedExecution(Stage('a', 'b').ipu(1), Stage('c'), Stage('d'))"
    assert options.TensorLocations.location_weight == {"onChip": 0, "useIOTilesToLoad": 1}
    load("setExecutionStrategy(poptorch.ShardedExecution(poptorch.AutoStage.AutoIncrement))")
    options = load(
        "setExecutionStrategy(poptorch.SerialPhasedExecution(poptorch.Phase(poptorch.Stage('a').ipu(0)), ['b'])"
        ".setTensorsLiveness(poptorch.Liveness.OffChipAfterFwd))"
    )
    assert options._execution_strategy.backendOptions()["tensors_liveness"] == Liveness.OffChipAfterFwd


def test_loading_returns_the_options_and_files_add_up(load: Any) -> None:
    options = Options()
    assert load("deviceIterations(2)\nlogDir('a')", options) is options
    load("logDir('b')", options)
    assert (options.device_iterations, options.log_dir) == (2, "b")


HOSTILE = [
    "deviceIterations(__import__('os').system('touch owned'))",
    "deviceIterations(open('owned', 'w'))",
    "deviceIterations(exec('x = 1'))",
    "deviceIterations((lambda: 1)())",
    "deviceIterations([x for x in (1, 2)][0])",
    "deviceIterations(2 ** 3)",
    "deviceIterations(1 if True else 2)",
    "deviceIterations(x)",
    "deviceIterations(options.device_iterations)",
    "deviceIterations(poptorch.__file__)",
    "deviceIterations(poptorch.OutputMode)",
    "deviceIterations(poptorch.OutputMode.__class__)",
    "deviceIterations(poptorch.OutputMode.Each)",
    "deviceIterations(os.OutputMode.All)",
    "deviceIterations(*[1])",
    "deviceIterations(**{'device_iterations': 1})",
    "deviceIterations({**{}})",
    "deviceIterations(f'{1}')",
    "deviceIterations(poptorch.Options())",
    "deviceIterations(poptorch.trainingModel('x'))",
    "deviceIterations(poptorch.Stage('a').__init__('b'))",
    "deviceIterations(poptorch.Stage('a').blocks.count('a'))",
    "deviceIterations(poptorch.optim.Stage('a'))",
    "deviceIterations(1); __import__('os')",
    "deviceIterations(1); deviceIterations(2)",
    "deviceIterations(1)(2)",
    "clone().deviceIterations(2)",
    "anchorTensor('a', 'b').deviceIterations(2)",
    "deviceIterations(2).Training.clone()",
    "deviceIterations('a' * 10)",
    "deviceIterations(2 * [3])",
    "deviceIterations(1) and replicationFactor(2)",
    "deviceIterations(1), replicationFactor(2)",
    "_Popart.options = 4",
    "Training._values = 4",
    "__class__ = 4",
    "device_iterations = x",
    "device_iterations = log_dir = 'a'",
    "device_iterations",
    "device_iterations += 1",
    "Training",
    "logDir(x := 'a')",
    "logDir('a\x00b')",
    "deviceIterations(" + "(" * 500 + "1" + ")" * 500 + ")",
]


@pytest.mark.parametrize("line", HOSTILE)
def test_a_line_that_is_no_option_call_is_refused_and_nothing_runs(
    line: str, load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = Options()
    before = repr(options)
    with pytest.raises(ConfigFileError, match=r"(?s)line 3 of poptorch.conf.*> options.") as caught:
        load(f"# first\ndeviceIterations(8)\n{line}\n", options)
    assert str(caught.value).endswith(f"> options.{line}")
    assert repr(options) == before
    assert [path.name for path in tmp_path.iterdir()] == ["poptorch.conf"]


@pytest.mark.parametrize(
    "line", ["deviceIterations(", "deviceIterations(4))", "device Iterations(4)", "import os", "(4)"]
)
def test_a_syntax_error_says_so(line: str, load: Load) -> None:
    with pytest.raises(ConfigFileError, match=r"line 1 of poptorch\.conf: .*\n> options\."):
        load(line)


def test_a_call_may_not_span_lines(load: Load) -> None:
    with pytest.raises(ConfigFileError, match=r"SyntaxError at line 2 of poptorch\.conf"):
        load("deviceIterations(2)\nreplicationFactor(\n4)\n")


@pytest.mark.parametrize(
    "line",
    [
        "foo(1)",
        "Training.foo(1)",
        "Trainng.gradientAccumulation(1)",
        "clone()",
        "set(device_iterations=2)",
        "_freeze()",
        "__init__()",
        "Training.__class__('x')",
        "loadFromFile('poptorch.conf')",
        "_Popart.options.clear()",
        "_values.clear()",
    ],
)
def test_an_option_that_does_not_exist_is_an_attribute_error_too(line: str, load: Any) -> None:
    options = Options()
    for kind in (AttributeError, ConfigFileError):
        with pytest.raises(kind, match="Invalid attribute"):
            load(f"deviceIterations(2)\n{line}", options)
    assert options.device_iterations == 1


def test_a_misspelt_option_gets_a_suggestion(load: Any) -> None:
    with pytest.raises(AttributeError, match=r"Did you mean Training\.gradientAccumulation\? A line is one option"):
        load("gradientAccumulation(4)")


def test_what_an_option_itself_refuses_passes_through_after_the_lines_above(load: Any) -> None:
    options = Options()
    with pytest.raises(AssertionError, match="Unexpected type"):
        load("deviceIterations(2)\nreplicationFactor(2.0)\nlogDir('x')", options)
    assert (options.device_iterations, options.log_dir) == (2, ".")
    with pytest.raises(TypeError):
        load("deviceIterations()")
    with pytest.raises(AssertionError, match="more than one stage"):
        load("setExecutionStrategy(poptorch.PipelinedExecution('a', 'a'))")


def test_frozen_options_refuse_a_file(load: Any) -> None:
    options = Options()
    options._freeze()
    with pytest.raises(AttributeError, match="frozen"):
        load("deviceIterations(2)", options)


def test_a_missing_file_is_reported_by_python(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Options().loadFromFile(str(tmp_path / "none.conf"))


literals = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3) | st.tuples(inner)
    ),
    max_leaves=6,
)


@given(literals)
def test_every_literal_arrives_as_python_would_read_it(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    path = tmp_path_factory.mktemp("literal") / "poptorch.conf"
    path.write_text(f"_Popart.set('key', {value!a})")
    assert Options().loadFromFile(str(path))._Popart._value("key") == value
