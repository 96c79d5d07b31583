"""Plans for one model side by side, best first."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Dict, Iterator, List, Optional, Sequence, Tuple, Union

from torch.optim import Optimizer

from ignite_ipu.cli.terminal import following
from ignite_ipu.errors import PlanError
from ignite_ipu.pipeline.costs.machine import MK2, Machine
from ignite_ipu.pipeline.costs.optimizer_state import OptimizerState, optimizer_state
from ignite_ipu.pipeline.costs.stages import Strategy
from ignite_ipu.pipeline.planning.plan import Plan, Tabled
from ignite_ipu.pipeline.planning.planner import plan
from ignite_ipu.pipeline.profiling.profile import Profile


@dataclass(frozen=True)
class Comparison(Tabled):
    """Plans for the same model and IPUs, those that fit first, each group by estimated throughput.

    Args:
        plans: The plans.
    """

    plans: Tuple[Plan, ...]

    @property
    def best(self) -> Plan:
        """The fastest plan that fits.

        Raises:
            PlanError: None fits; the message is the least bad plan's, with its stage, numbers and remedies.
        """
        if not self.plans[0].fits:
            nearest = min(self.plans, key=lambda plan: plan.fullest)
            raise PlanError(
                "No plan fits. The nearest is " + nearest.strategy_name + ":\n" + "\n".join(nearest.problems)
            )
        return self.plans[0]

    def table(self, rows: Optional[int] = None) -> List[Dict[str, str]]:
        """Return one row per plan, as text by column; `rows` limits them."""
        return [
            {
                "strategy": plan.strategy_name,
                "IPUs x replicas": f"{plan.ipus_per_replica} x {plan.replicas}",
                "accumulation": str(plan.accumulation),
                "device iterations": str(plan.device_iterations),
                "global batch": str(plan.global_batch),
                "bubble": f"{plan.iteration.bubble:.0%}",
                "memory": f"{plan.fullest:.0%}",
                "samples/s": f"{plan.throughput:,.0f}",
                "verdict": "fits" if plan.fits else "does not fit",
            }
            for plan in self.plans[:rows]
        ]


def compare(
    profile: Profile,
    ipus: int,
    *,
    optimizer: Union[Optimizer, OptimizerState, str] = "adamw",
    machine: Machine = MK2,
    only: Optional[Sequence[Strategy]] = None,
    ipus_per_replica: Optional[int] = None,
    replicas: Optional[int] = None,
    global_batch: Optional[int] = None,
    accumulation: Optional[int] = None,
    device_iterations: Optional[int] = None,
) -> Comparison:
    """Plan every strategy for every split of the IPUs into replicas.

    Args:
        profile: The measured model.
        ipus: IPUs to use; the largest power of two among them is used, as PopTorch attaches to no other number.
        optimizer: The optimizer that trains, or its name; inference profiles ignore it.
        machine: What the IPUs are like.
        only: Strategies to try; all that differ for this profile by default.
        ipus_per_replica, replicas, accumulation, device_iterations: Fix these numbers. Free by default.
        global_batch: Fix the samples per weight update; the accumulation follows from it. Free by default.

    Raises:
        PlanError: No combination exists at all, such as more IPUs per replica than layers.
    """
    if ipus < 1:
        raise PlanError(f"Planning for {ipus} IPUs; it takes at least 1.")
    total = 1 << (ipus.bit_length() - 1)
    state = optimizer_state(optimizer)
    plans: List[Plan] = []
    refusals = set()
    most = min(total // (replicas or 1), machine.ipus_per_process)
    tried: List[Tuple[int, int, Strategy]] = []
    for count in [ipus_per_replica] if ipus_per_replica else [1 << n for n in range(most.bit_length())]:
        copies = replicas or max(1, total // count)
        tried += [(count, copies, each) for each in only or strategies(profile, state, count, copies)]
    for count, copies, strategy in following(tried, "Planning", lambda each: f"{each[1]} x {each[0]} IPUs"):
        try:
            plans.append(
                plan(
                    profile,
                    count,
                    replicas=copies,
                    available=ipus,
                    strategy=strategy,
                    optimizer=state,
                    machine=machine,
                    global_batch=global_batch,
                    accumulation=accumulation,
                    device_iterations=device_iterations,
                )
            )
        except PlanError as error:
            refusals.add(str(error))
    if not plans:
        raise PlanError(f"{profile.model} cannot be planned for {ipus} IPUs: " + " ".join(sorted(refusals)))
    return Comparison(tuple(sorted(plans, key=lambda p: (not p.fits, -p.throughput))))


def strategies(profile: Profile, optimizer: OptimizerState, ipus_per_replica: int, replicas: int) -> Iterator[Strategy]:
    """Yield every strategy that differs from the others for this model and split."""
    layouts = [(False, False)]
    if ipus_per_replica > 1:
        layouts = [(True, False), (True, True), *layouts] if profile.training else [(True, False), *layouts]
    state = profile.training and optimizer.slots > 0
    offloads, shards = (False, True)[: 1 + state], (False, True)[: 1 + (state and replicas > 1)]
    for (pipelined, recompute), offload, shard in product(layouts, offloads, shards):
        yield Strategy(pipelined, recompute, offload, shard)
