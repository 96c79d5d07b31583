"""`poptorch.Options`: its setters, their checks, and the life of the object."""

from __future__ import annotations

import copy
import logging
import pickle
from pathlib import Path
from typing import Any, Callable, Dict, List

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ignite_ipu.emulator.enums import (
    CommGroupType,
    ConnectionType,
    HalfFloatCastingBehavior,
    MeanReductionStrategy,
    OutputMode,
    ReductionType,
    SyncPattern,
)
from ignite_ipu.emulator.options import Options, TensorLocationSettings
from ignite_ipu.emulator.options.root import resolved
from ignite_ipu.emulator.options.strategies import PipelinedExecution, ShardedExecution, Stage

SETTERS: List[Callable[[Options], Any]] = [
    lambda o: o.deviceIterations(2),
    lambda o: o.replicationFactor(2),
    lambda o: o.inputReplicaGrouping(1, CommGroupType.Consecutive),
    lambda o: o.outputMode(OutputMode.All),
    lambda o: o.setExecutionStrategy(ShardedExecution()),
    lambda o: o.setAvailableMemoryProportion({"IPU0": 0.5}),
    lambda o: o.autoRoundNumIPUs(),
    lambda o: o.broadcastBuffers(False),
    lambda o: o.randomSeed(1),
    lambda o: o.connectionType(ConnectionType.OnDemand),
    lambda o: o.syncPattern(SyncPattern.SinglePipeline),
    lambda o: o.useIpuModel(True),
    lambda o: o.useIpuId(3),
    lambda o: o.useOfflineIpuTarget(),
    lambda o: o.enableExecutableCaching("cache"),
    lambda o: o.enableExecutableCaching(None),
    lambda o: o.enableProfiling(),
    lambda o: o.enableStableNorm(True),
    lambda o: o.enableSyntheticData(True),
    lambda o: o.logCycleCount(True),
    lambda o: o.logDir("logs"),
    lambda o: o.maxRepeatLogs(None),
    lambda o: o.modelName("net"),
    lambda o: o.showCompilationProgressBar(False),
    lambda o: o.relaxOptimizerAttributesChecks(),
    lambda o: o.sourceLocationExcludes(["a"]),
    lambda o: o.appendToLocationExcludes("a", "b"),
    lambda o: o.disableModuleNamescope(),
    lambda o: o.updatableNamedBuffers(["mean"]),
    lambda o: o.from_json('{"deviceIterations": 2}'),
    lambda o: o.Training.gradientAccumulation(2),
    lambda o: o.Training.accumulationAndReplicationReductionType(ReductionType.Sum),
    lambda o: o.Training.setMeanAccumulationAndReplicationReductionStrategy(MeanReductionStrategy.Running),
    lambda o: o.Training.setAutomaticLossScaling(True),
    lambda o: o.Training.setConvolutionDithering(True),
    lambda o: o.Precision.enableFloatingPointExceptions(True),
    lambda o: o.Precision.enableStochasticRounding(True),
    lambda o: o.Precision.setPartialsType(torch.half),
    lambda o: o.Precision.autocastEnabled(False),
    lambda o: o.Distributed.configureProcessId(1, 2),
    lambda o: o.Distributed.setEnvVarNames("NO_SUCH_SIZE", "NO_SUCH_RANK"),
    lambda o: o.Distributed.disable(),
    lambda o: o.TensorLocations.numIOTiles(32),
    lambda o: o.TensorLocations.setWeightLocation(TensorLocationSettings()),
    lambda o: o._Popart.set("autoRecomputation", 1),
    lambda o: o._Popart.setEngineOptions({"a": "b"}),
    lambda o: o._Popart.setPatterns({"InPlace": False}),
]


def owner(options: Options, returned: Any) -> bool:
    parts = ("Training", "Precision", "Distributed", "TensorLocations", "_Popart")
    return any(returned is each for each in (options, *(getattr(options, part) for part in parts)))


@pytest.mark.parametrize("call", SETTERS)
def test_every_setter_returns_the_object_it_was_called_on(call: Callable[[Options], Any]) -> None:
    options = Options()
    assert owner(options, call(options))


@pytest.mark.parametrize("call", SETTERS)
def test_every_setter_refuses_frozen_options_and_works_on_their_clone(call: Callable[[Options], Any]) -> None:
    options = Options()
    options._freeze()
    before = repr(options)
    with pytest.raises(AttributeError, match="Can't modify frozen Options"):
        call(options)
    assert repr(options) == before
    call(options.clone())
    assert repr(options) == before


@pytest.mark.parametrize(
    ("call", "name", "value"),
    [
        (lambda o: o.deviceIterations(7), "device_iterations", 7),
        (lambda o: o.replicationFactor(0), "replication_factor", 0),
        (lambda o: o.autoRoundNumIPUs(), "auto_round_num_ipus", True),
        (lambda o: o.broadcastBuffers(False), "broadcast_buffers", False),
        (lambda o: o.connectionType(ConnectionType.Never), "connection_type", 2),
        (lambda o: o.syncPattern(SyncPattern.ReplicaAndLadder), "sync_pattern", 2),
        (lambda o: o.setAvailableMemoryProportion({"IPU3": 0.2}), "available_memory_proportion", {3: 0.2}),
        (lambda o: o.useIpuModel(False), "use_model", False),
        (lambda o: o.useIpuId(5), "ipu_id", 5),
        (lambda o: o.useOfflineIpuTarget(21), "ipu_version", 21),
        (lambda o: o.useOfflineIpuTarget(), "connection_type", ConnectionType.Never),
        (lambda o: o.randomSeed(9), "random_seed", 9),
        (lambda o: o.logDir("x"), "log_dir", "x"),
        (lambda o: o.maxRepeatLogs(1), "max_repeat_logs", 1),
        (lambda o: o.maxRepeatLogs(None), "max_repeat_logs", 2**64 - 1),
        (lambda o: o.modelName("n"), "model_name", "n"),
        (lambda o: o.outputMode(OutputMode.EveryN, 4), "output_return_period", 4),
    ],
)
def test_where_each_value_is_stored(call: Callable[[Options], Any], name: str, value: Any) -> None:
    options = Options()
    call(options)
    assert getattr(options, name) == options(name) == value


@pytest.mark.parametrize("name", ["use_model", "ipu_id", "ipu_version", "random_seed", "model_name"])
def test_some_values_do_not_exist_before_they_are_set(name: str) -> None:
    assert not Options().exists(name)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda o: o.deviceIterations(2.0), "Unexpected type"),
        (lambda o: o.replicationFactor("2"), "Unexpected type"),
        (lambda o: o.autoRoundNumIPUs(1), "Unexpected type"),
        (lambda o: o.broadcastBuffers(1), "Unexpected type"),
        (lambda o: o.logDir(3), "Unexpected type"),
        (lambda o: o.outputMode(2), "outputMode"),
        (lambda o: o.outputMode(OutputMode.EveryN), "must have output_return_period"),
        (lambda o: o.outputMode(OutputMode.EveryN, 0), "must have output_return_period"),
        (lambda o: o.outputMode(OutputMode.EveryN, -2), "must have output_return_period"),
        (lambda o: o.setExecutionStrategy("pipelined"), "execution strategy"),
        (lambda o: o.setAvailableMemoryProportion({"CPU0": 0.5}), "Invalid key"),
        (lambda o: o.randomSeed("a"), "randomSeed"),
        (lambda o: o.connectionType(0), "connectionType"),
        (lambda o: o.syncPattern(0), "syncPattern"),
        (lambda o: o.useIpuId("0"), "useIpuId"),
        (lambda o: o.useIpuModel("yes"), "useIpuModel"),
        (lambda o: o.modelName(3), "modelName"),
        (lambda o: o.updatableNamedBuffers("mean"), "list of buffer names"),
        (lambda o: o.updatableNamedBuffers([1]), "list of buffer names"),
        (lambda o: o.showCompilationProgressBar(1), "showCompilationProgressBar"),
        (lambda o: o.relaxOptimizerAttributesChecks(None), "relaxOptimizerAttributesChecks"),
    ],
)
def test_wrong_types_are_refused_at_once(call: Callable[[Options], Any], words: str) -> None:
    options = Options()
    before = repr(options)
    with pytest.raises(AssertionError, match=words):
        call(options)
    assert repr(options) == before


def test_a_memory_proportion_needs_the_number_of_an_ipu() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        Options().setAvailableMemoryProportion({"IPUzero": 0.5})


def test_the_default_output_mode_is_open() -> None:
    options = Options()
    assert options.defaultOutputMode() and options.output_mode == 4
    assert not options.outputMode(OutputMode.Sum).defaultOutputMode()


def test_a_period_without_a_use_is_reported_and_stored(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="poptorch::python"):
        options = Options().outputMode(OutputMode.All, 3)
    assert "no use for output_return_period=3" in caplog.text
    assert options.output_return_period == 3


def test_a_random_seed_seeds_pytorch_even_when_refused() -> None:
    options = Options()
    options._freeze()
    with pytest.raises(AttributeError, match="frozen"):
        options.randomSeed(42)
    drawn = torch.rand(3)
    torch.manual_seed(42)
    assert torch.equal(drawn, torch.rand(3))


@given(replicas=st.integers(1, 64), size=st.integers(-3, 70), kind=st.sampled_from(list(CommGroupType)))
def test_input_groups_must_divide_the_replicas(replicas: int, size: int, kind: CommGroupType) -> None:
    options = Options().replicationFactor(replicas)
    if kind is CommGroupType.NoGrouping:
        options.inputReplicaGrouping(size, kind)
        assert (options.input_group_size, options.input_cgt) == (1, CommGroupType.Consecutive)
    elif kind is CommGroupType.All:
        with pytest.raises(ValueError, match="cannot be All"):
            options.inputReplicaGrouping(size, kind)
    elif size > replicas:
        with pytest.raises(ValueError, match="cannot be larger than"):
            options.inputReplicaGrouping(size, kind)
    elif size not in [each for each in range(1, replicas + 1) if replicas / each == replicas // each]:
        with pytest.raises(ValueError, match="must be a factor of"):
            options.inputReplicaGrouping(size, kind)
    else:
        options.inputReplicaGrouping(size, kind)
        assert (options.input_group_size, options.input_cgt) == (size, kind)


def test_input_groups_are_checked_against_the_replicas_of_that_moment() -> None:
    with pytest.raises(ValueError, match="cannot be larger than"):
        Options().inputReplicaGrouping(2, CommGroupType.Consecutive).replicationFactor(4)


def test_an_anchor_keeps_its_mode_and_a_period_only_for_every_n() -> None:
    options = Options()
    assert options.anchorTensor("a", "encoder/relu_1") is None
    options.anchorTensor("b", "fc", OutputMode.EveryN, 3)
    options.anchorTensor("c", "fc", OutputMode.All, 3)
    assert [tuple(anchor) for anchor in options.anchored_tensors.values()] == [
        ("encoder/relu_1", True, OutputMode.Default, 1),
        ("fc", False, OutputMode.EveryN, 3),
        ("fc", False, OutputMode.All, 1),
    ]


def test_anchors_without_a_mode_follow_the_model() -> None:
    options = Options().deviceIterations(4).outputMode(OutputMode.EveryN, 2)
    options.anchorTensor("a", "x")
    options.anchorTensor("b", "y", OutputMode.Sum)
    anchors = resolved(options, training=True).anchored_tensors
    assert [tuple(anchor)[2:] for anchor in anchors.values()] == [
        (OutputMode.EveryN, 2),
        (OutputMode.Sum, 1),
    ]


def test_anchoring_works_on_frozen_options_and_leaves_their_clones_alone() -> None:
    options = Options()
    options._freeze()
    clone = options.clone()
    options.anchorTensor("a", "x")
    assert options.anchored_tensors.keys() == {"a"}
    assert clone.anchored_tensors == {}


def test_the_deprecated_settings_warn_and_do_nothing_even_when_frozen(caplog: pytest.LogCaptureFixture) -> None:
    options = Options()
    options._freeze()
    assert options.Jit.traceModel(False) is options.Jit
    assert options.Precision.halfFloatCasting(HalfFloatCastingBehavior.Default) is options.Precision
    assert options.Precision.runningStatisticsAlwaysFloat(True) is options.Precision
    assert [record.message.split("(")[0] for record in caplog.records] == [
        "Jit.traceModel",
        "Precision.halfFloatCasting",
        "Precision.runningStatisticsAlwaysFloat",
    ]


def test_location_excludes_are_replaced_or_extended() -> None:
    options = Options()
    assert len(options._source_location_excludes) == 3
    assert options.appendToLocationExcludes("a", "b")._source_location_excludes[3:] == ["a", "b"]
    assert options.sourceLocationExcludes(["c"])._source_location_excludes == ["c"]


def test_caching_keeps_its_path_until_switched_off(caplog: pytest.LogCaptureFixture) -> None:
    options = Options().enableExecutableCaching("cache")
    assert options._Popart._value("cachePath") == "cache"
    assert options._Popart._value("enableEngineCaching") is True
    assert options.enableExecutableCaching(None)._Popart._value("enableEngineCaching") is False
    assert caplog.records == []


@pytest.mark.parametrize("variable", ["POPTORCH_IPU_MODEL", "POPTORCH_SMALL_IPU_MODEL"])
def test_caching_warns_on_the_ipu_model(
    variable: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "1")
    Options().useIpuModel(False).enableExecutableCaching("cache")
    assert caplog.records == []
    Options().enableExecutableCaching("cache")
    assert "doesn't work with the IPU model" in caplog.text


def test_a_model_variable_must_be_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPTORCH_IPU_MODEL", "yes")
    with pytest.raises(ValueError, match="POPTORCH_IPU_MODEL must be 0 or 1, and it is 'yes'"):
        Options().enableExecutableCaching("cache")


def test_profiling_adds_to_the_engine_options() -> None:
    options = Options()
    options._Popart.setEngineOptions({"target.hostSyncTimeout": "60"})
    options.enableProfiling("profiles")
    assert options._Popart._value("engineOptions") == {
        "target.hostSyncTimeout": "60",
        "debug.allowOutOfMemory": "true",
        "autoReport.directory": "profiles",
        "autoReport.all": "true",
    }


def test_profiling_warns_where_the_environment_wins(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", '{"autoReport.all": "false"}')
    Options().enableProfiling()
    assert "autoReport.all" in caplog.text and "overridden by environment variable" in caplog.text
    assert "autoReport.directory" not in caplog.text


def test_clones_are_independent_in_every_part() -> None:
    options = Options().deviceIterations(2).setExecutionStrategy(PipelinedExecution(Stage("a")))
    options.Training.gradientAccumulation(4)
    options._freeze()
    text = repr(options)
    clone = options.clone()
    assert type(clone) is Options and repr(clone) == text
    for call in SETTERS:
        call(clone)
    assert repr(options) == text


def test_the_strategy_of_a_clone_is_its_own() -> None:
    options = Options().setExecutionStrategy(PipelinedExecution(Stage("a")))
    options.clone()._execution_strategy.stage("a").ipu(3)
    assert "ipu(3)" not in repr(options)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, copy.copy, lambda o: pickle.loads(pickle.dumps(o))])
def test_the_parts_of_a_copy_share_its_back_end_settings(duplicate: Callable[[Options], Options]) -> None:
    clone = duplicate(Options())
    clone.Precision.setPartialsType(torch.half)
    clone.Training.setAutomaticLossScaling(True)
    assert clone._Popart._value("partialsTypeMatMuls") == "half"
    assert clone._Popart._value("automaticLossScalingSettings.enabled") is True


def test_copies_and_pickles_keep_the_frozen_state() -> None:
    options = Options()
    options._freeze()
    for duplicate in (copy.copy(options), pickle.loads(pickle.dumps(options))):
        with pytest.raises(AttributeError, match="frozen"):
            duplicate.deviceIterations(2)
        with pytest.raises(AttributeError, match="frozen"):
            duplicate.Training.gradientAccumulation(2)


def test_options_with_listed_stages_pickle() -> None:
    options = Options().setExecutionStrategy(PipelinedExecution(Stage("a").ipu(1), ["b", "c"]))
    assert repr(pickle.loads(pickle.dumps(options))) == repr(options)


def test_the_repr_shows_every_part() -> None:
    options = Options()
    options.Training.gradientAccumulation(16)
    text = repr(options)
    for part in (
        "device_iterations=1",
        "Training=_TrainingOptions(gradient_accumulation=16",
        "Distributed=",
        "Precision=",
        "TensorLocations=",
        "Jit=",
        "_Popart=_PopartOptions(instrumentWithHardwareCycleCounter=False",
        "execution_strategy=PipelinedExecution(AutoStage.SameAsIpu)",
    ):
        assert part in text


def test_a_dictionary_needs_an_output_mode() -> None:
    with pytest.raises(AssertionError, match="An output mode must be picked"):
        Options().toDict()


def test_a_dictionary_merges_all_parts_but_jit_and_precision() -> None:
    options = Options().outputMode(OutputMode.All).showCompilationProgressBar(False)
    options.Training.gradientAccumulation(3)
    options.TensorLocations.numIOTiles(64)
    options._Popart.set("autoRecomputation", 3)
    merged = options.toDict()
    expected: Dict[str, Any] = {
        "execution_mode": 0,
        "output_mode": 2,
        "gradient_accumulation": 3,
        "num_distributed_processes": 1,
        "numIOTiles": 64,
        "autoRecomputation": 3,
        "rearrangeAnchorsOnHost": False,
    }
    assert {name: merged[name] for name in expected} == expected
    assert "autocast_enabled" not in merged and "compilation_progress_bar_fn" not in merged


def test_a_dictionary_refuses_a_name_used_twice() -> None:
    options = Options().outputMode(OutputMode.All)
    options.Distributed.createOrSet(log_dir="x")
    with pytest.raises(AssertionError, match="some keys in common"):
        options.toDict()


def test_the_progress_bar_of_the_dictionary_can_be_called(capsys: pytest.CaptureFixture[str]) -> None:
    bar = Options().outputMode(OutputMode.All).toDict()["compilation_progress_bar_fn"]
    for _ in range(2):  # two compilations
        for step in range(5):
            bar(step, 4)
        shown = capsys.readouterr().err
        assert [f"{step}/4 [" in shown for step in range(5)] == [True] * 5
        assert shown.count("\n") == 1 and shown.endswith("\n")


def test_new_options_start_from_the_environment(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POPTORCH_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", '{"deviceIterations": 8, "Training.gradientAccumulation": 2}')
    with caplog.at_level(logging.INFO, logger="poptorch::python"):
        options = Options()
    assert (options.device_iterations, options.Training.gradient_accumulation) == (8, 2)
    assert options._Popart._value("cachePath") == str(tmp_path)
    assert "POPTORCH_CACHE_DIR" in caplog.text


def test_default_options_that_are_no_json_name_their_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", "deviceIterations=8")
    with pytest.raises(ValueError, match="POPTORCH_DEFAULT_OPTIONS is no JSON"):
        Options()
