"""Fate of every attribute of an optimizer in a conversion, for a person to read."""

from __future__ import annotations

import dataclasses
from typing import Iterator, List, Tuple

__all__ = ["Receipt", "Row"]


@dataclasses.dataclass(frozen=True)
class Row:
    """One attribute.

    Attributes:
        attribute: Its name.
        value: Its value, or one for each parameter group.
        fate: `kept`, `mapped` to something that does the same, `dropped`, or `refused`.
        on_device: `variable`, `constant` or `compiled in`; empty for what does not reach the device.
        note: Why, in a few words.
    """

    attribute: str
    value: str
    fate: str
    on_device: str = ""
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Receipt:
    """The rows of one conversion; `str()` gives them as a table."""

    title: str
    rows: Tuple[Row, ...]

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __getitem__(self, attribute: str) -> Row:
        for row in self.rows:
            if row.attribute == attribute:
                return row
        raise KeyError(attribute)

    def attributes(self, *, fate: str = "", on_device: str = "") -> List[str]:
        """Return the names of the attributes with this fate or role."""
        return [
            row.attribute
            for row in self.rows
            if (not fate or row.fate == fate) and (not on_device or row.on_device == on_device)
        ]

    def __str__(self) -> str:
        header = ("attribute", "value", "fate", "on device", "note")
        cells = [header, *[(row.attribute, row.value, row.fate, row.on_device, row.note) for row in self.rows]]
        widths = [max(len(line[column]) for line in cells) for column in range(len(header))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in cells]
        return "\n".join([self.title, *lines])
