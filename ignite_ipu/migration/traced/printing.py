"""What a forward prints while it is traced."""

from __future__ import annotations

import io
from typing import TextIO

from ignite_ipu.emulator.capture import active
from ignite_ipu.migration.traced.lines import current_place
from ignite_ipu.migration.traced.notes import Notes


class Printed(io.TextIOBase):
    """Standard output while a forward is traced: what it prints is noted, and goes to another stream.

    Args:
        stream: Where to.
        notes: Where it is noted.
    """

    def __init__(self, stream: TextIO, notes: Notes) -> None:
        self._stream = stream
        self._notes = notes

    def write(self, text: str) -> int:
        """Write to the stream."""
        place = current_place()
        if place is not None and active() is not None:
            message = f"{place.where} calls print(), which runs once, while tracing, and has no values to show"
            self._notes.add("print-in-forward", place, message)
        return self._stream.write(text)

    def flush(self) -> None:
        """Flush the stream."""
        self._stream.flush()
