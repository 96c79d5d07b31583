"""Plans against brute force, hand-made profiles and PopTorch's rules."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ignite_ipu.pipeline import (
    MK2,
    Crossing,
    Layer,
    Machine,
    PlanError,
    Profile,
    SavedTensor,
    SharedWeight,
    Strategy,
    TensorSize,
    compare,
    plan,
    simulate,
)
from ignite_ipu.pipeline.costs.stages import MemoryModel, TimeModel, optimizer_state

MB = 10**6


def layer(index, parameters=10 * MB, flops=1e9, saved=MB):
    return Layer(
        name=f"layer{index}",
        module=f"layer{index}",
        call=0,
        parameters=(TensorSize(f"layer{index}.weight", parameters),),
        trainable_bytes=parameters,
        trainable_elements=parameters // 4,
        forward_flops=flops,
        backward_flops=2 * flops,
        activation_bytes=MB,
        saved=(SavedTensor("activation", saved, index),),
    )


def chain(count=8, shared=(), training=True, **options):
    layers = tuple(layer(i, **options) for i in range(count))
    crossings = tuple(Crossing(i, i + 1, 10_000) for i in range(count - 1))
    return Profile("Chain", layers, crossings, shared, samples=2, input_bytes=1000, output_bytes=40, training=training)


TIED = (SharedWeight("layer0.weight", (0, 7), 10 * MB),)


def test_equal_layers_are_spread_evenly():
    found = plan(chain(8), 4)
    assert [len(stage.layers) for stage in found.stages] == [2, 2, 2, 2]
    assert [stage.ipu for stage in found.stages] == [0, 1, 2, 3]
    assert found.fits


sizes = st.integers(1, 60).map(lambda n: n * MB)


@given(
    st.lists(st.tuples(sizes, st.integers(1, 50), sizes), min_size=4, max_size=7),
    st.sampled_from([2, 4]),
    st.booleans(),
    st.integers(100, 900),
)
@settings(max_examples=60, deadline=None)
def test_no_other_cutting_that_fits_is_faster(shapes, ipus, recompute, memory):
    """Try every cutting with the same models of time and memory; the plan's slowest stage is the least that fits."""
    layers = tuple(layer(i, p, 1e9 * f, s) for i, (p, f, s) in enumerate(shapes))
    crossings = tuple(Crossing(i, i + 1, MB) for i in range(len(layers) - 1))
    profile = Profile("Random", layers, crossings)
    machine = Machine(memory=memory * MB)
    strategy = Strategy(recompute=recompute)
    found = plan(profile, ipus, strategy=strategy, machine=machine)
    held = MemoryModel(profile, optimizer_state("adamw"), strategy)
    time = TimeModel(profile, machine, recompute, ipus)
    best = None
    for cuts in combinations(range(1, len(layers)), ipus - 1):
        spans = list(zip((0, *cuts), (*cuts, len(layers))))
        if all(held.stage(a, b, s, ipus).total <= machine.usable_memory for s, (a, b) in enumerate(spans)):
            slowest = max(time.totals((a, b)) for a, b in spans)
            best = slowest if best is None else min(best, slowest)
    assert found.fits == (best is not None)
    if best is not None:
        assert found.iteration.period == pytest.approx(best)


def test_memory_of_a_stage_by_hand():
    """Stage 1 of 4 keeps 2 * 3 = 6 micro-batches; AdamW keeps 8 bytes per element; one accumulator per weight."""
    held = plan(chain(8), 4).stages[1].memory
    assert held.weights == 20 * MB
    assert held.gradients == 20 * MB
    assert held.optimizer == 8 * (20 * MB // 4)
    assert held.activations == 6 * (2 * MB + 10_000)
    assert held.working == 2 * MB


def test_what_each_option_saves():
    """Recomputation keeps inputs per micro-batch and one set of saved tensors; sharding divides state."""
    shape = chain(8)
    recomputed = plan(shape, 4, strategy=Strategy(recompute=True)).stages[1]
    assert recomputed.memory.activations == 6 * 10_000 + 2 * MB
    assert recomputed.time.recompute == pytest.approx(2 * MK2.compute_seconds(1e9, 0, False))
    sharded = plan(shape, 4, replicas=4, strategy=Strategy(shard_optimizer=True)).stages[1]
    assert sharded.memory.optimizer == 8 * (20 * MB // 4) / 4
    assert plan(shape, 4, strategy=Strategy(offload_optimizer=True)).stages[1].memory.optimizer == 0
    assert plan(shape, 4, strategy=Strategy(pipelined=False)).stages[0].memory.activations == 2 * MB
    assert plan(shape, 4, optimizer="sgd").stages[1].memory.optimizer == 0


def test_shared_weights_stay_on_one_ipu():
    """The tied head runs as a fifth stage on IPU 0, and the pipeline's depth counts it."""
    found = plan(chain(8, shared=TIED), 4)
    assert [stage.ipu for stage in found.stages] == [0, 1, 2, 3, 0]
    assert found.stages[-1].layers == ("layer7",)
    assert found.fits and found.accumulation >= 2 * 5 - 1
    assert len(found.memory_per_ipu) == 4
    assert found.memory_per_ipu[0].total == found.stages[0].memory.total + found.stages[4].memory.total


def test_neighbours_that_share_a_weight_share_a_stage():
    near = (SharedWeight("layer2.weight", (2, 4), 10 * MB),)
    found = plan(chain(8, shared=near), 4)
    assert {stage.ipu for stage in found.stages if stage.begin <= 2 < stage.end} == {
        stage.ipu for stage in found.stages if stage.begin <= 4 < stage.end
    }


def test_accumulation_respects_poptorch_and_says_why():
    """At least 2 * stages - 1; more where filling would cost more than a tenth of a step."""
    found = plan(chain(8), 4)
    assert 7 < found.accumulation <= 27
    assert "at least 2 * 4 - 1 = 7" in found.reasons[0]
    assert found.iteration.bubble <= 0.1
    assert plan(chain(8), 4, accumulation=7).fits
    refused = plan(chain(8), 4, accumulation=6)
    assert not refused.fits and "needs at least 2 * 4 - 1 = 7" in refused.problems[0]


def test_global_batch_sets_accumulation():
    """256 samples = 2 per micro-batch * 32 accumulation * 4 replicas."""
    found = plan(chain(8), 2, replicas=4, global_batch=256)
    assert (found.accumulation, found.global_batch) == (32, 256)
    with pytest.raises(PlanError, match=r"100 is no multiple of 2 samples per micro-batch \* 4 replicas = 8\. Use 96"):
        plan(chain(8), 2, replicas=4, global_batch=100)


def test_inference_needs_as_many_iterations_as_stages():
    found = plan(chain(8, training=False), 4)
    assert found.accumulation == 1 and found.device_iterations >= 4
    assert found.stages[0].memory.gradients == found.stages[0].memory.optimizer == 0
    refused = plan(chain(8, training=False), 4, device_iterations=3)
    assert "an inference pipeline of 4 stages needs at least 4" in refused.problems[0]


def test_too_little_memory_names_stage_tensors_and_remedies():
    found = plan(chain(8, parameters=200 * MB, saved=30 * MB), 4)
    assert not found.fits
    words = "\n".join(found.problems)
    assert "Stage 0 (IPU 0, layer0 to layer1) needs an estimated" in words
    assert "720 MB for tensors (80% of 900 MB)" in words
    assert "layer0: activation x 8 micro-batches 240 MB" in words
    assert "Recomputation would save" in words and "optimizer state off chip would save 800 MB" in words
    with pytest.raises(PlanError, match="Stage 0"):
        found.check()


def test_replicas_must_be_there_and_a_power_of_two():
    too_many = plan(chain(8), 4, replicas=4, available=8)
    assert (
        "4 IPUs per replica * 4 replicas = 16 IPUs, but 8 are available. Use at most 2 replicas" in too_many.problems[0]
    )
    odd = plan(chain(8), 3)
    assert "= 3 IPUs, but PopTorch attaches to a power of two. Use 2 or 4" in odd.problems[0]


def test_a_layout_that_somebody_chose():
    found = plan(chain(8), 2, sizes=[6, 2])
    assert [len(stage.layers) for stage in found.stages] == [6, 2]
    with pytest.raises(PlanError, match="9 in all, but Chain has 8"):
        plan(chain(8), 2, sizes=[6, 3])
    apart = plan(chain(8, shared=TIED), 2, sizes=[4, 4])
    assert (
        "Weight layer0.weight (10 MB) is shared by layers on different IPUs: layer0 on IPU 0, layer7 on IPU 1"
        in (apart.problems[0])
    )
    assert plan(chain(8, shared=TIED), 2, sizes=[4, 3, 1], stage_ipus=[0, 1, 0]).fits


def test_more_ipus_than_layers():
    with pytest.raises(PlanError, match="measured as 3 layers, which cannot fill 4 IPUs"):
        plan(chain(3), 4)


def test_a_plan_repeats_its_own_simulation():
    """Throughput is samples over the simulated time of a call."""
    found = plan(chain(8), 4, accumulation=16, device_iterations=5)
    again = simulate([stage.time for stage in found.stages], 16, update=found.update_seconds)
    assert found.call_seconds == pytest.approx(MK2.call_overhead + 5 * again.makespan)
    assert found.throughput == pytest.approx(2 * 16 * 5 / found.call_seconds)
    assert found.schedule().makespan == pytest.approx(again.makespan)


def test_comparison_ranks_what_fits_first():
    """A model too large for one IPU: every plan that fits comes before every one that does not, fastest first."""
    comparison = compare(chain(8, parameters=60 * MB), 8)
    fitting = [p.fits for p in comparison.plans]
    assert fitting == sorted(fitting, reverse=True) and True in fitting and False in fitting
    rates = [p.throughput for p in comparison.plans if p.fits]
    assert rates == sorted(rates, reverse=True)
    assert comparison.best is comparison.plans[0]
    assert {p.ipus for p in comparison.plans} == {8}
    assert {p.ipus_per_replica for p in comparison.plans} == {1, 2, 4, 8}
    assert {p.strategy.recompute for p in comparison.plans} == {True, False}


def test_comparison_without_a_fit_shows_the_nearest():
    with pytest.raises(PlanError, match=r"No plan fits\. The nearest is"):
        _ = compare(chain(4, parameters=2000 * MB), 4).best
    with pytest.raises(PlanError, match="cannot be planned for 8 IPUs"):
        compare(chain(4), 8, ipus_per_replica=8)


def test_memory_per_ipu_is_the_callers_to_set():
    """The same model that needs several Mk2 IPUs fits one of 16 GB."""
    big = compare(chain(8, parameters=150 * MB), 1, machine=replace(MK2, memory=16 * 10**9))
    assert big.best.ipus == 1
    assert big.best.strategy_name == "one IPU"


def test_tables_are_labelled_as_estimates():
    comparison = compare(chain(8), 4)
    for shown in (str(comparison), comparison._repr_html_(), str(comparison.best), comparison.best._repr_html_()):
        assert "estimate" in shown
    assert comparison._repr_html_().count("<tr>") == 1 + len(comparison.plans)
    assert "4 accumulation" in plan(chain(8), 1, accumulation=4).summary()
