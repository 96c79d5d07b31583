"""`Times`: the time stamps of a call, by which executors give latencies and counters."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Tuple

Events = List[List[float]]
Latency = Tuple[float, float, float]


class Times(NamedTuple):
    """The time stamps of one call, in seconds since it began.

    Host and device share their memory here, so that crossing takes no time: all inputs are there when the call begins,
    and all outputs when it ends.
    """

    inputs: int = 0
    steps: int = 0  # Micro-batches of each input that cross; none where data are synthetic.
    outputs: int = 0
    returned: int = 0  # The same of each output.
    seconds: float = 0.0

    def counters(self) -> Dict[str, Events]:
        """Return the time stamps by event, then tensor, then step."""
        begin: Events = [[0.0] * self.steps for _ in range(self.inputs)] or [[]]
        end: Events = [[self.seconds] * self.returned for _ in range(self.outputs)] or [[]]
        return {"input": begin, "input_complete": begin, "output": end, "output_complete": end}

    def latency(self) -> Latency:
        """Return minimum, maximum and mean seconds from a step's input to its output."""
        seconds = self.seconds if self.inputs and self.steps and self.outputs and self.returned else 0.0
        return seconds, seconds, seconds
