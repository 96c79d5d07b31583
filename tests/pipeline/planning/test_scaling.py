"""Replicas over a Pod: where they pay and where they stop."""

from __future__ import annotations

import pytest

from ignite_ipu.pipeline import Machine, PlanError, Strategy, scale
from tests.pipeline.planning.test_planner import MB, chain


def test_fixed_global_batch_stops_paying():
    """With a fixed batch each replica gets fewer micro-batches, until filling the pipeline eats the gain."""
    scaling = scale(chain(8), 4, global_batch=512)
    assert [(p.replicas, p.accumulation) for p in scaling.plans[-3:]] == [(16, 16), (32, 8), (64, 4)]
    gains = scaling.gains[1:]
    assert gains[0] > 1.8 > gains[-2] > gains[-1]
    assert scaling.pays_up_to == 2 ** [gain >= 1.5 for gain in gains].index(False) == 16
    assert "needs at least 2 * 4 - 1 = 7" in scaling.reason
    assert f"up to {scaling.pays_up_to}" in str(scaling)


def test_all_reduce_stops_it_too():
    """Slow links make the update dwarf the work, although every replica keeps its micro-batches."""
    slow = Machine(ipu_link_bandwidth=1e6, gateway_bandwidth=1e6)
    fast = scale(chain(8), 2, ipus=16, accumulation=8)
    assert fast.pays_up_to == 8
    assert scale(chain(8), 2, ipus=16, accumulation=8, machine=slow).pays_up_to == 1


def test_sharded_state_shrinks_with_replicas():
    scaling = scale(chain(8), 2, ipus=16, strategy=Strategy(shard_optimizer=True))
    state = [p.stages[0].memory.optimizer for p in scaling.plans]
    assert state == [state[0] / n for n in (1, 2, 4, 8)]


def test_sharding_may_need_replicas_to_fit():
    """One replica does not fit, two do: the state is split between them."""
    scaling = scale(chain(8, parameters=60 * MB), 2, ipus=16, strategy=Strategy(shard_optimizer=True), global_batch=512)
    assert [p.fits for p in scaling.plans] == [False, False, True, True]
    assert scaling.pays_up_to == 8
    hopeless = scale(chain(8, parameters=900 * MB), 2, ipus=4)
    assert hopeless.pays_up_to == 0 and "No number of replicas fits" in str(hopeless)


def test_beyond_64_ipus_it_takes_processes():
    scaling = scale(chain(8), 4, ipus=256, accumulation=32)
    assert scaling.plans[-1].ipus == 256
    assert any("256 IPUs need 4 processes" in reason for reason in scaling.plans[-1].reasons)
    assert all(p.fits for p in scaling.plans)


def test_impossible_questions():
    with pytest.raises(PlanError, match="use a power of two"):
        scale(chain(8), 3)
    with pytest.raises(PlanError, match="takes 8 IPUs, but the Pod has 4"):
        scale(chain(8), 8, ipus=4)
    with pytest.raises(PlanError, match="cannot fill"):
        scale(chain(2, parameters=MB), 4)
