"""Pictures of schedules and memory, drawn with matplotlib, and schedules as Perfetto shows them."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Dict, List, Sequence, Union

from ignite_ipu.errors import MissingLibraryError, PlanError, did_you_mean
from ignite_ipu.pipeline.costs.machine import Machine
from ignite_ipu.pipeline.costs.schedule import Schedule
from ignite_ipu.pipeline.costs.stages import StageMemory

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
_LABEL_SIZE = 6
_LABEL_WIDTH = 0.7  # of a letter, in font sizes


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of so many inches; raises `MissingLibraryError` without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingLibraryError("Drawing", "matplotlib", "plot") from error
    return Figure(figsize=(width, height), layout="constrained")


def check_picture(path: Union[str, os.PathLike[str]]) -> None:
    """Check that a picture can be drawn and written to `path`, before the work whose result it shows.

    Raises:
        MissingLibraryError: matplotlib is not installed.
        PlanError: matplotlib writes no files with this ending.
    """
    known = new_figure(1, 1).canvas.get_supported_filetypes()
    ending = os.path.splitext(path)[1][1:].lower()
    if ending and ending not in known:
        raise PlanError(f"{os.fspath(path)}: no picture has the ending .{ending}.{did_you_mean(ending, known)}")


def draw_schedule(schedule: Schedule) -> Figure:
    """Draw a row per IPU and a box per slot, with the micro-batch's number from 1, and return the figure.

    Args:
        schedule: A schedule simulated with `slots=True`.
    """
    figure = new_figure(12, 1.2 + 0.5 * len(schedule.busy))
    axes = figure.add_subplot()
    schedule_on(axes, schedule)
    axes.set_xlabel("estimated time, in the unit of the stages' times")
    return figure


def schedule_on(axes: Axes, schedule: Schedule, unit: str = "") -> None:
    """Draw a row per IPU and a box per slot; boxes that are wide enough have labels.

    Args:
        unit: Unit of the schedule's times; ticks show it with its prefix, such as "5 ms" for "s".
    """
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
    computed = max((slot.end for slot in schedule.slots if slot.kind != "U"), default=schedule.makespan)
    # A long update, or one after only some of its micro-batches, would squeeze the picture: it runs off the edge.
    width = min(schedule.makespan, 1.15 * computed)
    axes.set_xlim(0, width)
    # Points per unit of time; labels of rows, legends and margins take up to a fifth of the figure.
    scale = 0.8 * 72 * axes.figure.bbox.width / axes.figure.dpi / width
    for slot in schedule.slots:
        text = f"{slot.kind}{slot.micro_batch + 1}"
        if slot.kind != "U" and len(text) * _LABEL_SIZE * _LABEL_WIDTH <= (slot.end - slot.start) * scale:
            middle = (slot.start + slot.end) / 2
            axes.text(middle, slot.ipu, text, ha="center", va="center", fontsize=_LABEL_SIZE)
    if unit:
        axes.xaxis.set_major_formatter(_with_prefix(unit))
    axes.set_yticks(range(rows), [f"IPU {ipu}" for ipu in range(rows)])
    axes.invert_yaxis()
    axes.set_xlabel("estimated time")
    axes.set_title(f"bubble {schedule.bubble:.0%}")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=3, frameon=False)


def _with_prefix(unit: str) -> Any:
    """Return a formatter of ticks in a unit with prefixes: 0.005 is "5 ms"."""
    from matplotlib.ticker import EngFormatter

    return EngFormatter(unit=unit)


def memory_on(axes: Axes, held: Sequence[StageMemory], machine: Machine) -> None:
    """Draw a bar for the memory of each IPU, split by purpose, under the line of the usable memory."""
    below = [0.0] * len(held)
    for purpose, colour in _PURPOSES.items():
        sizes = [getattr(memory, purpose) / 1e6 for memory in held]
        axes.bar(
            range(len(held)),
            sizes,
            bottom=below,
            color=colour,
            label="working space" if purpose == "working" else purpose,
        )
        below = [low + size for low, size in zip(below, sizes)]
    axes.axhline(machine.usable_memory / 1e6, color="black", linestyle="--", label="usable")
    axes.axhline(machine.memory / 1e6, color="black", linestyle=":", label="memory of one IPU")
    axes.set_xticks(range(len(held)), [f"IPU {ipu}" for ipu in range(len(held))], rotation=45 if len(held) > 8 else 0)
    axes.set_ylabel("estimated memory, MB")
    axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)


def trace_events(schedule: Schedule) -> Dict[str, Any]:
    """Return the Trace Event Format's JSON object, one thread per IPU, times in microseconds.

    Args:
        schedule: A schedule in seconds, simulated with `slots=True`.

    Source: "Trace Event Format", Google, complete ("X") and metadata ("M") events.
    """
    events: List[Dict[str, Any]] = [
        {"name": "thread_name", "ph": "M", "pid": 0, "tid": ipu, "args": {"name": f"IPU {ipu}"}}
        for ipu in range(len(schedule.busy))
    ]
    for slot in schedule.slots:
        events.append(
            {
                "name": "update" if slot.kind == "U" else f"{slot.kind}{slot.micro_batch + 1}",
                "cat": "update" if slot.kind == "U" else _WORDS[slot.kind],
                "ph": "X",
                "pid": 0,
                "tid": slot.ipu,
                "ts": slot.start * 1e6,
                "dur": (slot.end - slot.start) * 1e6,
                "args": {"stage": slot.stage, "micro_batch": slot.micro_batch},
            }
        )
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"note": "simulated from estimates"}}


def write_trace(schedule: Schedule, path: Union[str, os.PathLike[str]]) -> None:
    """Write `trace_events(schedule)` to a file."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump(trace_events(schedule), file)
