"""Pictures of schedules, memory and scaling, drawn with matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional, Protocol, Sequence

from ignite_ipu.pipeline.costs.machine import Machine
from ignite_ipu.pipeline.costs.memory import StageMemory
from ignite_ipu.pipeline.costs.schedule import Schedule
from ignite_ipu.pipeline.profiling.profile import Profile

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = {"F": "#7fbf7b", "B": "#d6604d", "U": "#9970ab"}
_WORDS = {"F": "forward", "B": "backward", "U": "weight update"}
_PURPOSES = {
    "weights": "#4393c3",
    "gradients": "#92c5de",
    "optimizer": "#9970ab",
    "activations": "#7fbf7b",
    "working": "#fdae61",
}
_LABELLED = 400


class PlanFigures(Protocol):
    """Figures of a `Plan` that are drawn."""

    @property
    def profile(self) -> Profile: ...
    @property
    def machine(self) -> Machine: ...
    @property
    def strategy_name(self) -> str: ...
    @property
    def stages(self) -> Sequence[object]: ...
    @property
    def accumulation(self) -> int: ...
    @property
    def device_iterations(self) -> int: ...
    @property
    def ipus(self) -> int: ...
    @property
    def ipus_per_replica(self) -> int: ...
    @property
    def memory_per_ipu(self) -> Sequence[StageMemory]: ...
    @property
    def throughput(self) -> float: ...

    def schedule(self, micro_batches: Optional[int] = None) -> Schedule:
        """Return the schedule of so many micro-batches, with its slots."""


class ScalingFigures(Protocol):
    """Figures of a `Scaling` that are drawn."""

    @property
    def plans(self) -> Sequence[PlanFigures]: ...
    @property
    def pays_up_to(self) -> int: ...


def _figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("Drawing needs matplotlib: pip install 'ignite-ipu[plot]'.") from error
    return Figure(figsize=(width, height), layout="constrained")


def draw_schedule(schedule: Schedule) -> Figure:
    """Draw a row per IPU and a box per slot, with the micro-batch's number from 1, and return the figure.

    Args:
        schedule: A schedule simulated with `slots=True`.
    """
    figure = _figure(12, 1.2 + 0.5 * len(schedule.busy))
    _schedule_on(figure.add_subplot(), schedule)
    return figure


def draw_memory(plan: PlanFigures) -> Figure:
    """Draw a bar per IPU of a replica, split by purpose, under the line of what is usable, and return the figure."""
    figure = _figure(3 + 0.8 * plan.ipus_per_replica, 4)
    _memory_on(figure.add_subplot(), plan)
    return figure


def _schedule_on(axes: Axes, schedule: Schedule) -> None:
    rows = len(schedule.busy)
    for kind in dict.fromkeys(slot.kind for slot in schedule.slots):
        slots = [slot for slot in schedule.slots if slot.kind == kind]
        axes.barh(
            [slot.ipu for slot in slots],
            [slot.end - slot.start for slot in slots],
            left=[slot.start for slot in slots],
            height=0.8,
            color=_COLOURS[kind],
            edgecolor="white",
            linewidth=0.5,
            label=_WORDS[kind],
        )
    if len(schedule.slots) <= _LABELLED:
        for slot in schedule.slots:
            if slot.kind != "U":
                text = f"{slot.kind}{slot.micro_batch + 1}"
                axes.text((slot.start + slot.end) / 2, slot.ipu, text, ha="center", va="center", fontsize=6)
    computed = max((slot.end for slot in schedule.slots if slot.kind != "U"), default=schedule.makespan)
    # A long update, or one after only some of its micro-batches, would squeeze the picture: it runs off the edge.
    axes.set_xlim(0, min(schedule.makespan, 1.15 * computed))
    axes.set_yticks(range(rows), [f"IPU {ipu}" for ipu in range(rows)])
    axes.invert_yaxis()
    axes.set_xlabel("estimated time")
    axes.set_title(f"bubble {schedule.bubble:.0%}")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=3, frameon=False)


def _memory_on(axes: Axes, plan: PlanFigures) -> None:
    held = plan.memory_per_ipu
    below = [0.0] * len(held)
    for purpose, colour in _PURPOSES.items():
        sizes = [getattr(memory, purpose) / 1e6 for memory in held]
        axes.bar(range(len(held)), sizes, bottom=below, color=colour, label=purpose)
        below = [low + size for low, size in zip(below, sizes)]
    axes.axhline(plan.machine.usable_memory / 1e6, color="black", linestyle="--", label="usable")
    axes.axhline(plan.machine.memory / 1e6, color="black", linestyle=":", label="memory of one IPU")
    axes.set_xticks(range(len(held)), [f"IPU {ipu}" for ipu in range(len(held))], rotation=45 if len(held) > 8 else 0)
    axes.set_ylabel("estimated MB")
    axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)


def draw_plan(plan: PlanFigures, *, micro_batches: Optional[int] = None) -> Figure:
    """Draw the schedule of one device iteration above the memory of each IPU, and return the figure.

    Args:
        plan: The plan.
        micro_batches: How many to show; by default as many as fill the pipeline three times, or all if there are fewer.
    """
    own = plan.accumulation if plan.profile.training else plan.device_iterations
    shown = min(own, 6 * len(plan.stages)) if micro_batches is None else micro_batches
    figure = _figure(12, 5 + 0.4 * plan.ipus_per_replica)
    above, below = figure.subplots(2, 1, height_ratios=[2 + 0.4 * plan.ipus_per_replica, 3])
    _schedule_on(above, plan.schedule(shown))
    part = "" if shown == own else f", {shown} of {own} micro-batches shown"
    above.set_title(f"{plan.profile.model}: {plan.strategy_name}{part}")
    above.set_xlabel("estimated seconds")
    _memory_on(below, plan)
    return figure


def draw_scaling(scaling: ScalingFigures) -> Figure:
    """Draw estimated throughput against IPUs beside perfect scaling, and return the figure."""
    figure = _figure(7, 4)
    axes = figure.add_subplot()
    ipus = [plan.ipus for plan in scaling.plans]
    rates = [plan.throughput for plan in scaling.plans]
    axes.plot(ipus, rates, marker="o", label="estimated")
    axes.plot(ipus, [rates[0] * count / ipus[0] for count in ipus], linestyle=":", color="gray", label="perfect")
    axes.axvline(
        scaling.pays_up_to * scaling.plans[0].ipus_per_replica,
        color="black",
        linestyle="--",
        label="doubling pays up to here",
    )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xlabel("IPUs")
    axes.set_ylabel("estimated samples/s")
    axes.legend(frameon=False)
    return figure
