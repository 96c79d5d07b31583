"""When each call's inputs and outputs crossed between host and device: host clock times, not an IPU's."""

from __future__ import annotations

from typing import Dict, List, Optional, Tuple

Events = List[List[float]]
Latency = Tuple[float, float, float]


class Record:
    """The time stamps of an executor's last call, in seconds since it began."""

    def __init__(self) -> None:
        self._last: Optional[Tuple[int, int, int, int, float]] = None

    def set(self, inputs: int, steps: int, outputs: int, returned: int, seconds: float) -> None:
        """Keep one call's times.

        Args:
            inputs, outputs: How many tensors went in and came out.
            steps, returned: How many micro-batches of each of them cross; none where data are synthetic.
            seconds: How long the call took. Host and device share their memory here, so that crossing takes no time.
        """
        self._last = (inputs, steps, outputs, returned, seconds)

    def counters(self) -> Dict[str, Events]:
        """Return the time stamps by event, then tensor, then step."""
        if self._last is None:
            return {name: [[]] for name in ("input", "input_complete", "output", "output_complete")}
        inputs, steps, outputs, returned, seconds = self._last
        return {
            "input": _events(inputs, steps, 0.0),
            "input_complete": _events(inputs, steps, 0.0),
            "output": _events(outputs, returned, seconds),
            "output_complete": _events(outputs, returned, seconds),
        }

    def between(self, start: str, start_last: bool, end: str, end_last: bool) -> Latency:
        """Return minimum, maximum and mean of `end - start` over the steps, (0., 0., 0.) without data.

        The event of a step is the first or last one of its tensors. Where there are k starts for each end, the
        earliest of each k counts.
        """
        events = self.counters()
        starts, ends = _over_tensors(events[start], start_last), _over_tensors(events[end], end_last)
        if not starts or not ends:
            return (0.0, 0.0, 0.0)
        group = max(len(starts) // len(ends), 1)
        pairs = [(min(starts[index * group : (index + 1) * group]), value) for index, value in enumerate(ends)]
        spans = [value - first for first, value in pairs]
        return (min(spans), max(spans), sum(spans) / len(spans))


def _events(tensors: int, steps: int, time: float) -> Events:
    return [[time] * steps for _ in range(tensors)] or [[]]


def _over_tensors(events: Events, last: bool) -> List[float]:
    return [max(step) if last else min(step) for step in zip(*events)]
