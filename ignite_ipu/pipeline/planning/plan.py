"""A plan: the IPU of each layer, the settings, and the estimates."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple

from ignite_ipu.cli.terminal import columns
from ignite_ipu.errors import PlanError
from ignite_ipu.pipeline.costs.machine import Machine
from ignite_ipu.pipeline.costs.schedule import Schedule, StageTime, simulate
from ignite_ipu.pipeline.costs.stages import OptimizerState, StageMemory, Strategy
from ignite_ipu.pipeline.placing.applied import Start
from ignite_ipu.pipeline.placing.placement import Placement
from ignite_ipu.pipeline.planning.drawing import memory_on, new_figure, schedule_on
from ignite_ipu.pipeline.profiling.profile import Profile
from ignite_ipu.pipeline.units import bytes_text, seconds_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Tabled:
    """Estimates that are printed, and shown in notebooks, as a table between some text."""

    def summary(self) -> str:
        """Return the text above the table."""
        return ""

    def table(self) -> List[Dict[str, str]]:
        """Return the rows, as text by column."""
        raise NotImplementedError

    @property
    def foot(self) -> str:
        return "All times, sizes and rates are estimates."

    def __str__(self) -> str:
        return "\n\n".join(filter(None, (self.summary(), text_table(self.table()), self.foot)))

    def _repr_html_(self) -> str:
        rows = self.table()
        head = "".join(f"<th>{escape(name)}</th>" for name in rows[0])
        body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row.values()) + "</tr>" for row in rows)
        above = self.summary()
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        return f"{f'<pre>{escape(above)}</pre>' if above else ''}{table}<p>{escape(self.foot)}</p>"


@dataclass(frozen=True)
class StagePlan:
    """One stage: its span of layers, its IPU within a replica, and its estimated time and memory."""

    ipu: int
    begin: int
    end: int
    layers: Tuple[str, ...]
    time: StageTime
    memory: StageMemory

    @property
    def span(self) -> str:
        """First and last layer, in words."""
        return self.layers[0] if len(self.layers) == 1 else f"{self.layers[0]} .. {self.layers[-1]}"


@dataclass(frozen=True)
class Plan(Tabled):
    """A complete description of a run; every time, size and rate in it is an estimate.

    Args:
        strategy: Execution strategy and memory options.
        stages: The stages in execution order.
        replicas: Data-parallel copies.
        accumulation: Micro-batches per weight update and replica; 1 at inference.
        device_iterations: Repetitions per call.
        update_seconds: Weight update with all-reduce and off-chip traffic.
        iteration: Simulated schedule of one device iteration when training, of the whole call at inference.
        problems: Reasons why the plan cannot run; empty if it can.
        reasons: Reasons for the settings.
    """

    profile: Profile
    machine: Machine
    optimizer: OptimizerState
    strategy: Strategy
    stages: Tuple[StagePlan, ...]
    replicas: int
    accumulation: int
    device_iterations: int
    update_seconds: float
    iteration: Schedule = field(repr=False)
    problems: Tuple[str, ...] = ()
    reasons: Tuple[str, ...] = ()

    @property
    def strategy_name(self) -> str:
        """The strategy in words; on one IPU there is nothing to shard."""
        words = self.strategy.name.split(", ")
        return ", ".join(["one IPU", *words[1:]] if self.ipus_per_replica == 1 else words)

    @property
    def execution(self) -> str:
        """Execution of the stages, as placements call it."""
        return "pipelined" if self.strategy.pipelined else "sharded"

    @property
    def training(self) -> bool:
        return self.profile.training

    def factors(self) -> Dict[str, int]:
        """Return the batching factors by the names that the factories give them."""
        found = {"device_iterations": self.device_iterations, "replication_factor": self.replicas}
        return {**found, "gradient_accumulation_steps": self.accumulation} if self.training else found

    @property
    def ipus_per_replica(self) -> int:
        return 1 + max(stage.ipu for stage in self.stages)

    @property
    def ipus(self) -> int:
        return self.ipus_per_replica * self.replicas

    @property
    def memory_per_ipu(self) -> Tuple[StageMemory, ...]:
        """Estimated memory of each IPU of a replica, all its stages together."""
        held = [StageMemory()] * self.ipus_per_replica
        for stage in self.stages:
            held[stage.ipu] = held[stage.ipu] + stage.memory
        return tuple(held)

    @property
    def global_batch(self) -> int:
        """Samples per weight update, or per pipeline pass of all replicas at inference."""
        return self.profile.samples * self.accumulation * self.replicas

    @property
    def call_seconds(self) -> float:
        """Estimated duration of one call of the executor."""
        repeats = self.device_iterations if self.training else 1
        return self.machine.call_overhead + repeats * self.iteration.makespan

    @property
    def throughput(self) -> float:
        """Estimated samples per second."""
        return self.global_batch * self.device_iterations / self.call_seconds

    @property
    def fits(self) -> bool:
        return not self.problems

    def check(self) -> None:
        """Raise if the plan cannot run.

        Raises:
            PlanError: With every problem found.
        """
        if self.problems:
            raise PlanError("\n".join(self.problems))

    def schedule(self, micro_batches: Optional[int] = None) -> Schedule:
        """Simulate one device iteration again and keep every slot, for drawing.

        Args:
            micro_batches: How many to simulate; the plan's own number by default.
        """
        own = self.accumulation if self.training else self.device_iterations
        return simulate(
            [stage.time for stage in self.stages],
            own if micro_batches is None else micro_batches,
            training=self.training,
            pipelined=self.strategy.pipelined,
            ipus=[stage.ipu for stage in self.stages],
            update=self.update_seconds,
            slots=True,
        )

    def placement(self) -> Placement:
        """Return the placement of the model on its IPUs, which needs no edit of it."""
        self.check()
        first = [self.profile.layers[stage.begin] for stage in self.stages]
        starts = [Start(layer.module, stage.ipu, layer.call) for layer, stage in zip(first, self.stages)]
        return Placement(starts, self.execution)

    def summary(self) -> str:
        """Return the settings and estimates in a few lines."""
        kind = "training" if self.training else "inference"
        batch = f"{self.profile.samples} samples * {self.accumulation} accumulation * {self.replicas} replicas"
        unit = "update" if self.training else "pass"
        samples = self.global_batch * self.device_iterations
        lines = [
            f"{self.profile.model}, {kind} on {self.ipus} x {self.machine.name}: {self.strategy_name}",
            f"  {self.ipus_per_replica} IPUs per replica * {self.replicas} replicas = {self.ipus} IPUs",
            f"  {batch} = {self.global_batch} per {unit}",
            f"  device iterations {self.device_iterations}: {samples} samples per call",
            f"  estimated {self.throughput:,.0f} samples/s, {seconds_text(self.call_seconds)} per call, bubble "
            f"{self.iteration.bubble:.0%}, memory {self.fullest:.0%} of {bytes_text(self.machine.usable_memory)} at "
            "most",
            *([str(HostUpdateCopies(self))] if self.training else []),
            *(f"  because {reason}" for reason in self.reasons),
            *(f"  problem: {problem}" for problem in self.problems),
        ]
        return "\n".join(lines)

    @property
    def fullest(self) -> float:
        """Share of the usable memory that the fullest IPU needs."""
        return max(m.total for m in self.memory_per_ipu) / self.machine.usable_memory

    def table(self) -> List[Dict[str, str]]:
        """Return one row per stage, as text by column."""
        return [
            {
                "stage": str(number),
                "ipu": str(stage.ipu),
                "layers": stage.span,
                "n": str(len(stage.layers)),
                "forward": seconds_text(stage.time.forward),
                "backward": seconds_text(stage.time.backward + stage.time.recompute),
                "weights": bytes_text(stage.memory.weights),
                "gradients": bytes_text(stage.memory.gradients),
                "optimizer": bytes_text(stage.memory.optimizer),
                "activations": bytes_text(stage.memory.activations),
                "total": bytes_text(stage.memory.total),
                "busy": f"{self.iteration.utilisation[stage.ipu]:.0%}",
            }
            for number, stage in enumerate(self.stages)
        ]

    def draw(self, **options: Any) -> Figure:
        """Return a matplotlib figure with the schedule and the memory of each IPU; options as for `draw_plan`."""
        return draw_plan(self, **options)


class HostUpdateCopies:
    """The copies of an update with `update="host"`, estimated for a plan.

    Attributes:
        gradients: Bytes of gradients that a replica sends to the host; each micro-batch has gradients of its own.
        weights: Bytes of weights that come back.
        seconds: The duration of both.
    """

    def __init__(self, plan: Plan) -> None:
        self.weights = plan.profile.parameter_bytes
        self.gradients = self.weights * plan.accumulation
        self.seconds = plan.machine.host_seconds(self.gradients + self.weights, plan.ipus_per_replica, plan.replicas)

    def __str__(self) -> str:
        return (
            f"  with update='host' an update copies {bytes_text(self.gradients)} of gradients to the host and "
            f"{bytes_text(self.weights)} of weights back, {seconds_text(self.seconds)} more for each replica, and a "
            "call makes one update"
        )


def text_table(rows: Sequence[Dict[str, str]]) -> str:
    """Lay out rows in aligned columns; the first row's keys are the head."""
    return columns([tuple(rows[0]), *(tuple(row.values()) for row in rows)])


def draw_plan(plan: Plan, *, micro_batches: Optional[int] = None) -> Figure:
    """Draw the schedule of one device iteration above the memory of each IPU, and return the figure.

    Args:
        micro_batches: Number to show; by default enough to fill the pipeline twice, or all if there are fewer.
    """
    own = plan.accumulation if plan.training else plan.device_iterations
    shown = min(own, 4 * len(plan.stages)) if micro_batches is None else micro_batches
    figure = new_figure(12, 5 + 0.4 * plan.ipus_per_replica)
    above, below = figure.subplots(2, 1, height_ratios=[2 + 0.4 * plan.ipus_per_replica, 3])
    schedule_on(above, plan.schedule(shown), unit="s")
    part = "" if shown == own else f", {shown} of {own} micro-batches shown"
    above.set_title(f"{plan.profile.model}: {plan.strategy_name}{part}")
    above.set_xlabel("estimated time")
    memory_on(below, plan.memory_per_ipu, plan.machine)
    return figure


def draw_memory(plan: Plan) -> Figure:
    """Draw a bar per IPU of a replica, split by purpose, under the line of the usable memory, and return the figure."""
    figure = new_figure(3 + 0.8 * plan.ipus_per_replica, 4)
    memory_on(figure.add_subplot(), plan.memory_per_ipu, plan.machine)
    return figure
