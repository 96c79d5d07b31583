"""A schedule as trace events, which chrome://tracing and Perfetto open."""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List, Union

from ignite_ipu.pipeline.costs.schedule import Schedule

_WORDS = {"F": "forward", "B": "backward", "U": "update"}


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
                "cat": _WORDS[slot.kind],
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
