"""Plans for one model side by side: every strategy, best first, or one over more and more replicas of a Pod."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Sequence, Tuple, Union

from torch.optim import Optimizer

from ignite_ipu.cli.terminal import following
from ignite_ipu.errors import PlanError
from ignite_ipu.pipeline.costs.machine import MK2, Machine
from ignite_ipu.pipeline.costs.stages import OptimizerState, Strategy, optimizer_state
from ignite_ipu.pipeline.planning.drawing import new_figure
from ignite_ipu.pipeline.planning.plan import Plan, Tabled
from ignite_ipu.pipeline.planning.planner import plan
from ignite_ipu.pipeline.profiling.profile import Profile
from ignite_ipu.pipeline.units import bytes_text, seconds_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Comparison(Tabled):
    """Plans for the same model and IPUs, those that fit first, each group by estimated throughput."""

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
        ipus: IPUs to use; the largest power of two among them is used, as PopTorch attaches to no other number.
        optimizer: The optimizer that trains, or its name; inference profiles ignore it.
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
    setting: Dict[str, Any] = {"optimizer": state, "machine": machine, "available": ipus, "global_batch": global_batch}
    setting.update(accumulation=accumulation, device_iterations=device_iterations)
    plans: List[Plan] = []
    refusals = set()
    most = min(total // (replicas or 1), machine.ipus_per_process)
    tried: List[Tuple[int, int, Strategy]] = []
    for count in [ipus_per_replica] if ipus_per_replica else [1 << n for n in range(most.bit_length())]:
        copies = replicas or max(1, total // count)
        tried += [(count, copies, each) for each in only or strategies(profile, state, count, copies)]
    for count, copies, strategy in following(tried, "Planning", lambda each: f"{each[1]} x {each[0]} IPUs"):
        try:
            plans.append(plan(profile, count, replicas=copies, strategy=strategy, **setting))
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


@dataclass(frozen=True)
class Scaling(Tabled):
    """The same strategy with 1, 2, 4, ... replicas; all rates are estimates.

    Args:
        plans: One per number of replicas, rising.
        worthwhile: Smallest gain from twice the replicas that counts as paying.
        reason: Why the last plan is the last.
    """

    plans: Tuple[Plan, ...]
    worthwhile: float
    reason: str

    @property
    def gains(self) -> Tuple[float, ...]:
        """Throughput of each plan over that of the plan before; 2 is perfect. The first is 1."""
        rates = [p.throughput for p in self.plans]
        return (1.0, *(after / before for before, after in zip(rates, rates[1:])))

    @property
    def pays_up_to(self) -> int:
        """Replicas beyond which doubling no longer pays, from the fewest that fit on; 0 if none do."""
        best = 0
        for candidate, gain in zip(self.plans, self.gains):
            if best and (gain < self.worthwhile or not candidate.fits):
                break
            best = candidate.replicas if candidate.fits else best
        return best

    def table(self) -> List[Dict[str, str]]:
        """Return one row per plan, as text by column."""
        return [
            {
                "replicas": str(p.replicas),
                "IPUs": str(p.ipus),
                "accumulation": str(p.accumulation),
                "global batch": str(p.global_batch),
                "update": seconds_text(p.update_seconds),
                "step": seconds_text(p.iteration.makespan),
                "memory": bytes_text(max(m.total for m in p.memory_per_ipu)),
                "samples/s": f"{p.throughput:,.0f}",
                "gain": f"{gain:.2f}",
                "verdict": "fits" if p.fits else "does not fit",
            }
            for p, gain in zip(self.plans, self.gains)
        ]

    @property
    def foot(self) -> str:
        verdict = f"No number of replicas fits. {''.join(self.plans[-1].problems[:1])}"
        if self.pays_up_to:
            limit = f"(gains {self.worthwhile:.2f} times or more)"
            verdict = f"Doubling the replicas pays {limit} up to {self.pays_up_to}. {self.reason}"
        return f"{verdict}\n{super().foot}"

    def draw(self) -> Figure:
        """Return a matplotlib figure of throughput against IPUs."""
        return draw_scaling(self)


def scale(
    profile: Profile,
    ipus_per_replica: int,
    *,
    ipus: int = 256,
    strategy: Optional[Strategy] = None,
    optimizer: Union[Optimizer, OptimizerState, str] = "adamw",
    machine: Machine = MK2,
    global_batch: Optional[int] = None,
    accumulation: Optional[int] = None,
    worthwhile: float = 1.5,
) -> Scaling:
    """Plan 1, 2, 4, ... replicas, and price their all-reduce, sharded state and shared host links.

    Args:
        ipus_per_replica: IPUs for one copy of the model, a power of two.
        ipus: IPUs of the Pod.
        strategy: The strategy; `shard_optimizer` takes effect from two replicas on.
        optimizer: The optimizer that trains, or its name.
        global_batch: Samples per weight update, the same for every number of replicas: accumulation shrinks as they
            grow.
        accumulation: Micro-batches per update of each replica, so that the global batch grows with them. Without either
            the one-replica plan's proposal is kept.
        worthwhile: Smallest gain from twice the replicas that counts as paying.

    Raises:
        PlanError: Not even one replica can be planned.
    """
    if ipus_per_replica < 1 or ipus_per_replica & (ipus_per_replica - 1):
        raise PlanError(f"{ipus_per_replica} IPUs per replica cannot be replicated; use a power of two.")
    if ipus < ipus_per_replica:
        raise PlanError(f"One replica takes {ipus_per_replica} IPUs, but the Pod has {ipus}.")
    setting: Dict[str, Any] = {"optimizer": optimizer_state(optimizer), "machine": machine, "available": ipus}
    setting.update(strategy=strategy, global_batch=global_batch, accumulation=accumulation)
    plans: List[Plan] = []
    reason = f"The Pod has {ipus} IPUs."
    for replicas in (1 << n for n in range((ipus // ipus_per_replica).bit_length())):
        try:
            plans.append(plan(profile, ipus_per_replica, replicas=replicas, **setting))
        except PlanError as error:
            if not plans:
                raise
            reason = str(error)
            break
        if profile.training and global_batch is None:
            setting["accumulation"] = plans[-1].accumulation
        # Before the first that fits, more replicas may still help: they shard the optimizer's state further.
        if global_batch is not None and any(p.fits for p in plans) and not plans[-1].fits:
            reason = plans[-1].problems[0]
            break
    return Scaling(tuple(plans), worthwhile, reason)


def draw_scaling(scaling: Scaling) -> Figure:
    """Draw estimated throughput against IPUs beside perfect scaling, and return the figure."""
    figure = new_figure(7, 4)
    axes = figure.add_subplot()
    ipus = [plan.ipus for plan in scaling.plans]
    rates = [plan.throughput for plan in scaling.plans]
    axes.plot(ipus, rates, marker="o", label="estimated")
    axes.plot(ipus, [rates[0] * count / ipus[0] for count in ipus], linestyle=":", color="gray", label="perfect")
    limit = scaling.pays_up_to * scaling.plans[0].ipus_per_replica
    axes.axvline(limit, color="black", linestyle="--", label="doubling pays up to here")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xlabel("IPUs")
    axes.set_ylabel("estimated samples per second")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,.0f}")
    axes.legend(frameon=False)
    return figure
