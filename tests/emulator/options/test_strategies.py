"""Stages, phases and the four execution strategies."""

from __future__ import annotations

import copy
import pickle
from typing import Any, Callable

import pytest

from ignite_ipu.emulator.enums import AutoStage, Liveness
from ignite_ipu.emulator.options.strategies import (
    ParallelPhasedExecution,
    Phase,
    PipelinedExecution,
    SerialPhasedExecution,
    ShardedExecution,
    Stage,
    _IExecutionStrategy,
)


def test_a_stage_lists_its_blocks_and_may_be_given_an_ipu() -> None:
    stage = Stage("a", "b")
    assert stage.blocks == ("a", "b")
    assert stage.ipu(2) is stage
    assert repr(stage) == "Stage('a', 'b').ipu(2)"
    assert Stage().blocks == ()


@pytest.mark.parametrize("ids", [(1,), ("a", 2), (["a"],), (None,)])
def test_block_ids_are_strings(ids: Any) -> None:
    with pytest.raises(AssertionError, match="Block IDs are supposed to be strings"):
        Stage(*ids)


def test_the_ipu_of_a_stage_is_an_int() -> None:
    with pytest.raises(AssertionError, match="The IPU of a stage is an int"):
        Stage("a").ipu("0")  # type: ignore[arg-type]


def test_a_phase_is_made_of_stages_or_of_the_blocks_of_one_stage() -> None:
    first, second = Stage("a"), Stage("b")
    assert Phase(first, second).stages == [first, second]
    assert Phase(first, second).stage(1) is second
    assert [stage.blocks for stage in Phase("a", "b").stages] == [("a", "b")]


@pytest.mark.parametrize("arguments", [(Stage("a"), "b"), (1,), (["a"],), (Phase("a"),)])
def test_a_phase_takes_no_mixture(arguments: Any) -> None:
    with pytest.raises(AssertionError, match="All arguments must either be"):
        Phase(*arguments)


def test_a_phase_hands_out_one_ipu_per_stage() -> None:
    phase = Phase(Stage("a"), Stage("b"))
    phase.ipus(0, 1)
    assert repr(phase) == "Phase(Stage('a').ipu(0), Stage('b').ipu(1))"
    with pytest.raises(AssertionError, match="Phase contains 2 stages but 1 IPUs"):
        phase.ipus(0)


@pytest.mark.parametrize("kind", [PipelinedExecution, ShardedExecution])
def test_stages_are_listed_as_stages_ids_or_lists_of_ids(kind: Callable[..., PipelinedExecution]) -> None:
    stage = Stage("d")
    strategy = kind("a", ["b", "c"], stage, ("e",))
    assert [strategy.stage(block).blocks for block in "abcde"] == [("a",), ("b", "c"), ("b", "c"), ("d",), ("e",)]
    assert strategy.stage("d") is stage


@pytest.mark.parametrize("arguments", [("a", "a"), (Stage("a"), ["b", "a"]), (["a"], "b", Stage("a"))])
@pytest.mark.parametrize("kind", [PipelinedExecution, ShardedExecution, SerialPhasedExecution, ParallelPhasedExecution])
def test_a_block_is_in_one_stage(kind: Callable[..., _IExecutionStrategy], arguments: Any) -> None:
    with pytest.raises(AssertionError, match="associated with more than one stage"):
        kind(*arguments)


@pytest.mark.parametrize("arguments", [(1,), (AutoStage.SameAsIpu, "a"), ("a", AutoStage.AutoIncrement), (None,)])
def test_anything_else_is_a_type_error(arguments: Any) -> None:
    with pytest.raises(TypeError, match="not iterable"):
        PipelinedExecution(*arguments)


@pytest.mark.parametrize("strategy", [PipelinedExecution(), PipelinedExecution("a")], ids=repr)
def test_only_listed_blocks_have_a_stage(strategy: PipelinedExecution) -> None:
    with pytest.raises(AssertionError, match="Unknown block"):
        strategy.stage("b")


@pytest.mark.parametrize("kind", [SerialPhasedExecution, ParallelPhasedExecution])
def test_phases_have_no_automatic_stages(kind: Callable[..., Any]) -> None:
    with pytest.raises(AssertionError, match="There is currently no AutoStage"):
        kind()


def test_phases_are_given_in_many_forms() -> None:
    whole = Phase("a")
    strategy = SerialPhasedExecution(whole, ["b", "c"], [Stage("d"), Stage("e")], "f", Stage("g"))
    assert strategy.phase(0) is whole
    assert [[stage.blocks for stage in strategy.phase(number).stages] for number in range(1, 5)] == [
        [("b", "c")],
        [("d",), ("e",)],
        [("f",)],
        [("g",)],
    ]


def test_a_list_of_phases_must_be_spread() -> None:
    phases = [Phase("a"), Phase("b")]
    with pytest.raises(AssertionError, match="All arguments must either be"):
        SerialPhasedExecution(phases)  # type: ignore[arg-type]
    SerialPhasedExecution(*phases)


@pytest.mark.parametrize("number", [-1, "0", 0.0, None])
def test_phases_have_numbers_from_0(number: Any) -> None:
    with pytest.raises(AssertionError, match="identified by positive integers"):
        SerialPhasedExecution("a").phase(number)


def test_there_is_no_phase_beyond_the_last() -> None:
    with pytest.raises(IndexError):
        SerialPhasedExecution("a").phase(1)


def test_what_each_strategy_tells_the_back_end() -> None:
    assert PipelinedExecution().backendOptions() == {"execution_mode": 0}
    assert ShardedExecution().backendOptions() == {"execution_mode": 1}
    serial = SerialPhasedExecution("a")
    assert serial.setTensorsLiveness(Liveness.OffChipAfterEachPhase).useSeparateBackwardPhase() is serial
    assert serial.backendOptions() == {
        "execution_mode": 2,
        "separate_backward_phase": True,
        "tensors_liveness": 3,
        "serial_phases_execution": True,
    }
    parallel = ParallelPhasedExecution("a")
    assert parallel.sendTensorsOffChipAfterFwd() is parallel
    assert parallel.backendOptions() == {
        "execution_mode": 2,
        "separate_backward_phase": False,
        "tensors_liveness": 1,
        "serial_phases_execution": False,
    }
    assert parallel.sendTensorsOffChipAfterFwd(False).backendOptions()["tensors_liveness"] == 0


def test_phased_settings_check_their_types() -> None:
    for call in (
        lambda: SerialPhasedExecution("a").useSeparateBackwardPhase(1),  # type: ignore[arg-type]
        lambda: SerialPhasedExecution("a").setTensorsLiveness(1),  # type: ignore[arg-type]
        lambda: ParallelPhasedExecution("a").sendTensorsOffChipAfterFwd(1),  # type: ignore[arg-type]
    ):
        with pytest.raises(AssertionError, match="takes a"):
            call()


STRATEGIES = [
    PipelinedExecution(),
    PipelinedExecution(AutoStage.AutoIncrement),
    ShardedExecution(Stage("a").ipu(1), ["b"], Stage()),
    SerialPhasedExecution(Phase(Stage("a"), Stage("b")), "c").setTensorsLiveness(Liveness.OffChipAfterFwd),
    ParallelPhasedExecution("a", "b").useSeparateBackwardPhase(),
]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))], ids=["copy", "pickle"])
def test_every_strategy_copies_and_pickles(strategy: Any, duplicate: Callable[[Any], Any]) -> None:
    twin = duplicate(strategy)
    assert repr(twin) == repr(strategy) and type(twin) is type(strategy)
    if strategy._block_map:
        twin.stage("a").ipu(7)
        assert repr(twin) != repr(strategy)
