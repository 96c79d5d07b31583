"""Places of the operators of a trace, and placements that do not compile."""

from __future__ import annotations

import operator
from typing import Dict, List, Optional, Tuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import fx

from ignite_ipu.emulator.compiler.placement import BlockPlacement, Site
from ignite_ipu.emulator.enums import AutoStage, Liveness, OutputMode
from ignite_ipu.emulator.errors import Error
from ignite_ipu.emulator.options import Options
from ignite_ipu.emulator.options.strategies import (
    ParallelPhasedExecution,
    Phase,
    PipelinedExecution,
    SerialPhasedExecution,
    ShardedExecution,
    Stage,
    _IExecutionStrategy,
)

Block = Tuple[Optional[str], Optional[int]]


def placed(strategy: _IExecutionStrategy, *blocks: Block) -> BlockPlacement:
    placement = BlockPlacement(strategy)
    for user_id, ipu_id in blocks:
        placement.enter_block(user_id, ipu_id)
    return placement


def on_ipus(*ipus: int, strategy: Optional[_IExecutionStrategy] = None) -> BlockPlacement:
    """Blocks "0", "1", ... on the IPUs given, each a stage of its own."""
    return placed(strategy or PipelinedExecution(*map(str, range(len(ipus)))), *((None, ipu) for ipu in ipus))


def options(iterations: int = 1, accumulation: int = 1, replicas: int = 1) -> Options:
    result = Options().deviceIterations(iterations).replicationFactor(replicas).outputMode(OutputMode.All)
    result.Training.gradientAccumulation(accumulation)
    return result


def test_operators_before_any_block_are_on_the_first_ipu() -> None:
    assert BlockPlacement(PipelinedExecution()).site == Site(stage=0, phase=0, ipu=0, block=None)


def test_a_block_lasts_until_the_next_one() -> None:
    placement = BlockPlacement(PipelinedExecution())
    placement.enter_block("a", 0)
    assert placement.site.block == "a"
    placement.enter_block("b", 1)
    assert placement.site == Site(1, 0, 1, "b")


def test_after_the_end_of_a_block_operators_have_no_place() -> None:
    placement = placed(PipelinedExecution(), ("a", 0))
    placement.exit_block()
    with pytest.raises(Error, match="No active Block"):
        _ = placement.site
    placement.enter_block("b", 0)
    assert placement.site.block == "b"


def test_missing_ids_are_counted_and_can_start_again() -> None:
    placement = BlockPlacement(PipelinedExecution(AutoStage.AutoIncrement))
    assert [placement.enter_block(user_id, None) for user_id in (None, "a", "", None)] == ["0", "a", "1", "2"]
    placement.restart_auto_ids()
    assert placement.enter_block(None, None) == "0"


def test_same_as_ipu_takes_the_number_of_the_ipu() -> None:
    assert placed(PipelinedExecution(), ("a", 2)).site == Site(2, 0, 2, "a")
    with pytest.raises(AssertionError, match="SameAsIpu was selected but no IPU"):
        placed(PipelinedExecution(), ("a", None))


def test_auto_increment_counts_new_blocks_from_1() -> None:
    placement = placed(PipelinedExecution(AutoStage.AutoIncrement), ("a", None), ("b", 0), ("a", None), ("c", None))
    assert placement.blocks == [Site(1, 0, 1, "a"), Site(2, 0, 0, "b"), Site(1, 0, 1, "a"), Site(3, 0, 3, "c")]


def test_every_trace_counts_anew() -> None:
    strategy = PipelinedExecution(AutoStage.AutoIncrement)
    placed(strategy, ("a", None)).close()
    assert placed(strategy, ("b", None)).site.stage == 1


def test_the_ipu_of_a_stage_wins_over_the_blocks_and_that_over_the_stage_number() -> None:
    strategy = PipelinedExecution(Stage("a").ipu(3), "b", "c")
    assert placed(strategy, ("a", 1)).site == Site(0, 0, 3, "a")
    assert placed(strategy, ("b", 0)).site == Site(1, 0, 0, "b")
    assert placed(strategy, ("c", None)).site == Site(2, 0, 2, "c")


def test_a_block_that_is_not_listed_is_unknown_and_an_unused_one_is_fine() -> None:
    with pytest.raises(AssertionError, match=r"Unknown Block 'x': list of expected Blocks is \['a', 'b'\]"):
        placed(PipelinedExecution("a", "b"), ("a", None), ("x", None))


@pytest.mark.parametrize("ipu", ["0", 1.0, -1])
def test_an_ipu_is_a_number_from_0(ipu: object) -> None:
    with pytest.raises(Error, match="ipu_id must be an int of 0 or more"):
        placed(PipelinedExecution(), ("a", ipu))  # type: ignore[arg-type]


def test_the_phase_of_a_block_is_its_position() -> None:
    strategy = SerialPhasedExecution([Stage("a"), Stage("a2")], [Stage("b"), Stage("b2")])
    strategy.phase(0).ipus(0, 1)
    strategy.phase(1).ipus(1, 0)
    sites = placed(strategy, ("a", None), ("a2", None), ("b", 0), ("b2", None)).blocks
    assert sites == [Site(-1, 0, 0, "a"), Site(-1, 0, 1, "a2"), Site(-1, 1, 1, "b"), Site(-1, 1, 0, "b2")]


ipu_lists = st.lists(st.integers(0, 9), max_size=12)


@given(ipu_lists)
def test_ipus_are_counted_up_to_the_largest(ipus: List[int]) -> None:
    """The published rule: as many as there are distinct ids, and at least the largest id and one."""
    ids = {0, *ipus} if not ipus else set(ipus)
    assert on_ipus(*ipus).ipus_per_replica == max(len(ids), max(ids) + 1)


@given(ipu_lists)
def test_consecutive_blocks_on_one_ipu_are_one_pipeline_stage(ipus: List[int]) -> None:
    merged = [0]
    for ipu in ipus:
        if ipu != merged[-1]:
            merged.append(ipu)
    assert on_ipus(*ipus).pipeline_stages == len(merged)


@given(st.data())
def test_stages_and_ipus_follow_the_lists(data: st.DataObject) -> None:
    """Brute force: look the block up in the lists that were given, in order."""
    names = [f"b{number}" for number in range(data.draw(st.integers(1, 6)))]
    cuts = data.draw(st.lists(st.sampled_from(range(len(names) + 1)), max_size=3).map(sorted))
    lists = [names[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(names)])]
    forced: Dict[int, int] = data.draw(st.dictionaries(st.integers(0, len(lists) - 1), st.integers(0, 5), max_size=2))
    stages = [Stage(*each) for each in lists]
    for number, ipu in forced.items():
        stages[number].ipu(ipu)
    blocks = data.draw(st.lists(st.tuples(st.sampled_from(names), st.none() | st.integers(0, 5)), max_size=8))
    placement = placed(PipelinedExecution(*stages), *blocks)
    for (name, ipu_id), site in zip(blocks, placement.blocks):
        number = next(index for index, each in enumerate(lists) if name in each)
        wanted = forced.get(number, number if ipu_id is None else ipu_id)
        assert site == Site(number, 0, wanted, name)


@given(st.integers(1, 80), st.integers(1, 8), st.booleans())
def test_ipus_come_in_powers_of_two(ipus: int, replicas: int, rounded: bool) -> None:
    placement = on_ipus(ipus - 1, strategy=ShardedExecution("0"))
    chosen = options(replicas=replicas).autoRoundNumIPUs(rounded)
    needed = ipus * replicas
    powers = [1, 2, 4, 8, 16, 32, 64]
    if needed in powers or (rounded and needed <= 64):
        assert placement.ipus(chosen) == min(power for power in powers if power >= needed)
    else:
        # 128 is a power of two, but there is no such machine.
        message = (
            "Too many IPUs requested: .* several processes, .*`ignite-ipu launch`"
            if rounded or needed in (128, 256, 512)
            else "The model specifies the use of"
        )
        with pytest.raises(Error, match=message):
            placement.ipus(chosen)


def test_rounding_up_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    placement = on_ipus(0, 1, 2, strategy=ShardedExecution())
    placement.check(options().autoRoundNumIPUs(), training=False)
    assert placement.ipus(options().autoRoundNumIPUs()) == 4
    assert [record.message for record in caplog.records] == ["The model uses 3 IPUs; 4 are reserved, a power of two."]


def test_the_ipu_model_and_offline_targets_take_any_number(monkeypatch: pytest.MonkeyPatch) -> None:
    placement = on_ipus(0, 1, 2, strategy=ShardedExecution())
    assert placement.ipus(options().useIpuModel(True)) == 3
    assert placement.ipus(options().useOfflineIpuTarget()) == 3
    monkeypatch.setenv("POPTORCH_IPU_MODEL", "1")
    assert placement.ipus(options()) == 3
    with pytest.raises(Error, match="The model specifies the use of 3 IPUs"):
        placement.ipus(options().useIpuModel(False))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.integers(1, 14))
def test_training_needs_as_many_accumulation_steps_as_stages_forward_and_back(ipus: List[int], steps: int) -> None:
    placement, chosen = on_ipus(*ipus), options(accumulation=steps).autoRoundNumIPUs()
    forward = placement.pipeline_stages
    if set(ipus) == {0} or steps >= forward + forward - 1:
        placement.check(chosen, training=True)
    else:
        with pytest.raises(Error, match="gradientAccumulation must be greater than or equal"):
            placement.check(chosen, training=True)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.integers(1, 8))
def test_inference_needs_as_many_iterations_as_stages(ipus: List[int], iterations: int) -> None:
    placement, chosen = on_ipus(*ipus), options(iterations=iterations).autoRoundNumIPUs()
    if set(ipus) == {0} or iterations >= placement.pipeline_stages:
        placement.check(chosen, training=False)
    else:
        with pytest.raises(Error, match="deviceIterations must be greater"):
            placement.check(chosen, training=False)


def test_sharded_and_phased_executions_have_no_depth() -> None:
    on_ipus(0, 1, 2, 3, strategy=ShardedExecution()).check(options(), training=True)
    phased = SerialPhasedExecution(Phase(Stage("0").ipu(0)), Phase(Stage("1").ipu(1)))
    on_ipus(0, 1, strategy=phased).check(options(), training=True)


def test_every_n_does_not_go_with_a_pipeline() -> None:
    every_second = options(iterations=4).outputMode(OutputMode.EveryN, 2)
    with pytest.raises(Error, match="EVERYN is not valid for pipelined models"):
        on_ipus(0, 1).check(every_second, training=False)
    on_ipus(0, 0).check(every_second, training=False)
    on_ipus(0, 1, strategy=ShardedExecution()).check(every_second, training=False)


def test_a_stage_of_a_pipeline_is_on_one_ipu() -> None:
    placement = placed(PipelinedExecution(["a", "b"], "c"), ("a", 0), ("b", 1), ("c", 1))
    with pytest.raises(Error, match="Stage 0 of the pipeline is on two IPUs: block 'a' on 0, block 'b' on 1"):
        placement.check(options(accumulation=9), training=True)


def test_operators_before_the_first_block_are_in_the_first_stage() -> None:
    placement = BlockPlacement(PipelinedExecution(Stage("a").ipu(1)))
    placement.enter_block("a", None)
    placement.check(options(accumulation=9), training=True)
    placement = BlockPlacement(PipelinedExecution(Stage("a").ipu(1)))
    _ = placement.site
    placement.enter_block("a", None)
    with pytest.raises(Error, match="the operators before the first block on 0, block 'a' on 1"):
        placement.check(options(accumulation=9), training=True)


def chain(*sites: Site) -> fx.Graph:
    """A graph in which each operator reads the result of the previous one."""
    graph = fx.Graph()
    node = graph.placeholder("x")
    for site in sites:
        node = graph.call_function(operator.neg, (node,))
        node.meta["site"] = site
    return graph


def test_values_do_not_flow_back_in_a_pipeline() -> None:
    blocks: List[Block] = [("a", 0), ("b", 1), ("c", 0)]
    placement = placed(PipelinedExecution(), *blocks)
    placement.check_graph(chain(*placement.blocks[:2]))
    with pytest.raises(Error, match=r"Block 'c' \(stage 0\) reads results of block 'b' \(stage 1\)"):
        placement.check_graph(chain(*placement.blocks))
    for strategy in (
        ShardedExecution(),
        PipelinedExecution("a", "b", "c"),
        PipelinedExecution(AutoStage.AutoIncrement),
    ):
        placement = placed(strategy, *blocks)
        placement.check_graph(chain(*placement.blocks))


def test_nor_from_a_later_phase_to_an_earlier_one() -> None:
    placement = placed(SerialPhasedExecution("a", "b"), ("b", 0), ("a", 0))
    with pytest.raises(Error, match=r"Block 'a' \(phase 0\) reads results of block 'b' \(phase 1\)"):
        placement.check_graph(chain(*placement.blocks))


def test_a_phased_block_needs_an_ipu() -> None:
    with pytest.raises(Error, match="Block 'a' of phase 0 has no IPU"):
        placed(SerialPhasedExecution("a"), ("a", None)).check(options(), training=False)


def test_parallel_phases_alternate_between_even_and_odd_ipus() -> None:
    strategy = ParallelPhasedExecution("a", "b", "c")
    placed(strategy, ("a", 0), ("b", 1), ("c", 2), ("c", 0)).check(options().autoRoundNumIPUs(), training=True)
    with pytest.raises(Error, match="even phases must run on even IPUs"):
        placed(strategy, ("a", 0), ("b", 0)).check(options(), training=True)
    placed(SerialPhasedExecution("a", "b"), ("a", 0), ("b", 0)).check(options(), training=True)


@pytest.mark.parametrize("liveness", list(Liveness))
def test_parallel_phases_overlap_so_two_livenesses_do_not_apply(liveness: Liveness) -> None:
    strategy = ParallelPhasedExecution("a")
    strategy._tensors_liveness = liveness
    placement = placed(strategy, ("a", 0))
    if liveness in (Liveness.AlwaysLive, Liveness.OffChipAfterFwd):
        placement.check(options(), training=True)
    else:
        with pytest.raises(Error, match=f"Liveness.{liveness.name} is not valid for a parallel phased execution"):
            placement.check(options(), training=True)
