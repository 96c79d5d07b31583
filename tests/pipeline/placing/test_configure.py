"""Plans and placements in PopTorch's own words."""

from __future__ import annotations

import pytest

from ignite_ipu import backend
from ignite_ipu.pipeline import Placement, PlanError, Start, Strategy, configure, plan
from tests.pipeline.planning.test_planner import TIED, chain


@pytest.fixture
def poptorch():
    return backend.poptorch()


def test_a_plan_becomes_options(poptorch):
    """Batching factors, replicas, strategy and the optimizer's location, and nothing beyond the plan."""
    found = plan(
        chain(8), 4, replicas=2, accumulation=12, device_iterations=3, strategy=Strategy(True, True, True, True)
    )
    options = configure(found, poptorch.Options())
    assert (options.device_iterations, options.replication_factor) == (3, 2)
    assert options.Training.gradient_accumulation == 12
    location = options.TensorLocations.location_optimizer
    assert location == {"onChip": 0, "useReplicatedTensorSharding": 1}
    assert options._Popart.options["autoRecomputation"] == 3
    plain = configure(plan(chain(8), 4), poptorch.Options())
    assert "location_optimizer" not in plain.TensorLocations.toDict()
    assert "autoRecomputation" not in plain._Popart.options


def test_inference_has_no_accumulation(poptorch):
    options = configure(plan(chain(8, training=False), 4, device_iterations=9), poptorch.Options())
    assert options.device_iterations == 9 and options.Training.gradient_accumulation == 1


def test_a_plan_with_problems_is_refused(poptorch):
    with pytest.raises(PlanError, match="at least 2"):
        configure(plan(chain(8), 4, accumulation=1), poptorch.Options())


@pytest.mark.parametrize(
    ("execution", "name", "ipus"),
    [
        ("pipelined", "PipelinedExecution", [0, 1, 0]),
        ("sharded", "ShardedExecution", [0, 1, 0]),
        ("serial phased", "SerialPhasedExecution", [0, 0, 0]),
        ("parallel phased", "ParallelPhasedExecution", [0, 1, 0]),
    ],
)
def test_every_block_has_its_stage(poptorch, execution, name, ipus):
    """Each execution is PopTorch's class of that name, with one stage or phase per block; phases get legal IPUs."""
    placement = Placement([Start("a", 0), Start("b", 1), Start("c", 0)], execution)
    strategy = placement.strategy()
    assert type(strategy) is getattr(poptorch, name)
    assert list(placement.ipus) == ipus
    for block in placement.blocks:
        assert block in strategy.stage(block).blocks


def test_a_plan_with_a_tied_head_returns_to_the_first_ipu(poptorch):
    placement = plan(chain(8, shared=TIED), 2).placement()
    assert placement.ipus == (0, 1, 0)
    assert placement.strategy().stage("layer7").blocks == ("layer7",)
