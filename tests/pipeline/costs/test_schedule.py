"""The simulator against closed forms and against a simulation of single events."""

from __future__ import annotations

from typing import Dict, List, Sequence, Tuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ignite_ipu.pipeline import PlanError, StageTime, in_flight, simulate

TIMES = st.integers(0, 20).map(float)
STAGES = st.lists(st.builds(StageTime, TIMES, TIMES, TIMES), min_size=1, max_size=5)


def events(
    times: Sequence[StageTime], micro_batches: int, moves: Sequence[float], training: bool
) -> Dict[Tuple[str, int, int], Tuple[float, float]]:
    """Start and end of every pass, one event at a time: an IPU takes its next job once that job's input has arrived."""
    stages = len(times)
    queues: List[List[Tuple[str, int]]] = []
    for stage in range(stages):
        if not training:
            queues.append([("F", m) for m in range(micro_batches)])
            continue
        ahead = min(micro_batches, 2 * (stages - stage))
        order = [("F", m) for m in range(ahead)]
        for m in range(micro_batches):
            order.append(("B", m))
            order += [("F", m + ahead)] if m + ahead < micro_batches else []
        queues.append(order)
    done: Dict[Tuple[str, int, int], Tuple[float, float]] = {}
    free = [0.0] * stages
    while any(queues):
        progressed = False
        for stage, queue in enumerate(queues):
            if not queue:
                continue
            kind, m = queue[0]
            if kind == "F":
                before, move = ("F", stage - 1, m), moves[stage - 1] if stage else 0.0
                needed, length = stage > 0, times[stage].forward
            elif stage == stages - 1:
                before, move, needed = ("F", stage, m), 0.0, True
                length = times[stage].recompute + times[stage].backward
            else:
                before, move, needed = ("B", stage + 1, m), moves[stage], True
                length = times[stage].recompute + times[stage].backward
            if needed and before not in done:
                continue
            start = max(free[stage], done[before][1] + move) if needed else free[stage]
            done[kind, stage, m] = (start, start + length)
            free[stage] = start + length
            queue.pop(0)
            progressed = True
        assert progressed, "the order of jobs deadlocks"
    return done


@given(STAGES, st.integers(1, 30), st.booleans(), st.data())
@settings(max_examples=150, deadline=None)
def test_every_slot_is_where_single_events_put_it(times, micro_batches, training, data):
    """The waves of the simulator and a naive event loop give the same start and end for every pass."""
    moves = data.draw(st.lists(TIMES, min_size=len(times) - 1, max_size=len(times) - 1))
    schedule = simulate(times, micro_batches, training=training, transfers=moves, slots=True)
    expected = events(times, micro_batches, moves, training)
    assert {(s.kind, s.stage, s.micro_batch): (s.start, s.end) for s in schedule.slots} == expected
    assert schedule.makespan == max(end for _, end in expected.values())


@given(STAGES, st.integers(1, 200), st.booleans(), st.booleans(), st.data())
@settings(max_examples=100, deadline=None)
def test_skipping_the_steady_state_changes_nothing(times, micro_batches, training, pipelined, data):
    """Without slots the simulator jumps from fill to drain, to the same makespan and busy times."""
    moves = data.draw(st.lists(TIMES, min_size=len(times) - 1, max_size=len(times) - 1))
    options = {"training": training, "pipelined": pipelined, "transfers": moves}
    short = simulate(times, micro_batches, **options)
    full = simulate(times, micro_batches, slots=True, **options)
    assert short.makespan == pytest.approx(full.makespan)
    assert short.busy == full.busy
    assert short.filled == full.filled


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 8, 16])
def test_a_training_pipeline_is_full_after_two_n_plus_one_steps(stages):
    """With passes of one step each, the first stage ends its first backward pass at the end of step 2 N + 1."""
    schedule = simulate([StageTime(1, 1)] * stages, 5 * stages, slots=True)
    assert schedule.filled == 2 * stages + 1
    before = [slot for slot in schedule.slots if slot.ipu == 0 and slot.end < schedule.filled]
    assert [slot.kind for slot in before] == ["F"] * 2 * stages


@pytest.mark.parametrize("stages", [1, 2, 4, 8])
@pytest.mark.parametrize("micro_batches", [16, 64, 1000])
def test_makespan_and_bubble_of_equal_stages(stages, micro_batches):
    """N equal stages and M micro-batches take (M + N - 1) times a forward and a backward pass."""
    schedule = simulate([StageTime(1, 2)] * stages, micro_batches)
    assert schedule.makespan == 3 * (micro_batches + stages - 1)
    assert schedule.bubble == pytest.approx((stages - 1) / (micro_batches + stages - 1))
    assert schedule.utilisation == pytest.approx([micro_batches / (micro_batches + stages - 1)] * stages)


@given(STAGES, st.integers(1, 50))
def test_inference_fills_and_then_runs_at_the_slowest_stage(times, micro_batches):
    """A chain of machines: the first micro-batch takes the sum of the stages, each further one the slowest."""
    schedule = simulate(times, 1, training=False, device_iterations=micro_batches)
    forward = [t.forward for t in times]
    assert schedule.makespan == sum(forward) + (micro_batches - 1) * max(forward)
    assert schedule.filled == sum(forward[:-1])


@given(STAGES, st.integers(1, 20))
def test_sharded_execution_is_a_sum(times, micro_batches):
    """One IPU works at a time, so that times add up."""
    schedule = simulate(times, micro_batches, pipelined=False)
    each = sum(t.forward + t.recompute + t.backward for t in times)
    assert schedule.makespan == each * micro_batches


def test_micro_batches_in_flight_are_what_the_schedule_keeps():
    """Counting forward passes begun and backward passes ended gives `in_flight` at its most."""
    stages = 4
    schedule = simulate([StageTime(1, 1)] * stages, 40, slots=True)
    for stage in range(stages):
        held = most = 0
        for slot in schedule.slots:
            if slot.stage == stage:
                held += 1 if slot.kind == "F" else -1
                most = max(most, held)
        assert most == in_flight(stage, stages)


def test_merged_last_stage_fills_one_step_earlier():
    """PopTorch counts the last stage's forward and backward pass as one pipeline stage."""
    assert simulate([StageTime(1, 1)] * 4, 40, merge_last=True).filled == 2 * 4


def test_stages_may_share_an_ipu():
    """A tied head on the first IPU adds its time there: that IPU sets the pace, and no two slots overlap."""
    times = [StageTime(1, 1), StageTime(3, 3), StageTime(2, 2)]
    schedule = simulate(times, 200, ipus=[0, 1, 0], slots=True)
    assert schedule.period == 6
    assert schedule.makespan == pytest.approx(6 * 200, rel=0.1)
    own = sorted((slot.start, slot.end) for slot in schedule.slots if slot.ipu == 0)
    assert all(end <= start for (_, end), (start, _) in zip(own, own[1:]))


def test_updates_separate_device_iterations():
    """Every device iteration drains and updates before the next one starts."""
    one = simulate([StageTime(1, 1)] * 2, 8, update=5.0, slots=True)
    three = simulate([StageTime(1, 1)] * 2, 8, update=5.0, device_iterations=3, slots=True)
    assert three.makespan == 3 * one.makespan == 3 * (2 * (8 + 1) + 5.0)
    assert [slot.start for slot in three.slots if slot.kind == "U" and slot.ipu == 0] == [18.0, 41.0, 64.0]
    assert {slot.micro_batch for slot in three.slots if slot.kind == "F"} == set(range(24))


def test_slots_are_a_sequence():
    """Counted and found by place, from either end, across device iterations and their updates."""
    schedule = simulate([StageTime(1, 2)] * 2, 4, update=5.0, device_iterations=3, slots=True)
    slots = list(schedule.slots)
    assert len(schedule.slots) == len(slots) == 3 * (2 * 2 * 4 + 2)
    assert [schedule.slots[i] for i in range(-len(slots), len(slots))] == slots * 2
    assert schedule.slots[2:40:7] == tuple(slots[2:40:7])
    with pytest.raises(IndexError):
        schedule.slots[54]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([], 1), "at least one stage"),
        (([StageTime(1)], 0), "micro_batches is 0"),
        (([StageTime(-1.0)], 1), "negative"),
    ],
)
def test_nonsense_is_refused(arguments, words):
    with pytest.raises(PlanError, match=words):
        simulate(*arguments)


def test_lists_of_the_wrong_length_are_refused():
    """Transfers belong to cuts and IPUs to stages; both counts are in the message."""
    with pytest.raises(PlanError, match="2 transfer times for 2 stages; there are 1"):
        simulate([StageTime(1)] * 2, 1, transfers=[0.0, 0.0])
    with pytest.raises(PlanError, match="1 IPUs for 2 stages"):
        simulate([StageTime(1)] * 2, 1, ipus=[0])
    with pytest.raises(PlanError, match="without gaps"):
        simulate([StageTime(1)] * 2, 1, ipus=[0, 2])
