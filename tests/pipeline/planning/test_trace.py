"""Trace files against the schedule and the format's rules."""

from __future__ import annotations

import json

from ignite_ipu.pipeline import StageTime, simulate, trace_events, write_trace


def test_every_slot_is_an_event(tmp_path):
    """Complete events carry start and duration in microseconds; threads are named after IPUs."""
    schedule = simulate([StageTime(1e-3, 2e-3)] * 3, 8, update=1e-3, slots=True)
    write_trace(schedule, tmp_path / "trace.json")
    written = json.loads((tmp_path / "trace.json").read_text())
    assert written == trace_events(schedule)
    complete = [e for e in written["traceEvents"] if e["ph"] == "X"]
    assert len(complete) == len(schedule.slots) == 3 * (8 + 8 + 1)
    first = next(e for e in complete if e["name"] == "B1" and e["tid"] == 2)
    assert first["dur"] == 2000 and first["cat"] == "backward"
    names = [e["args"]["name"] for e in written["traceEvents"] if e["ph"] == "M"]
    assert names == ["IPU 0", "IPU 1", "IPU 2"]
