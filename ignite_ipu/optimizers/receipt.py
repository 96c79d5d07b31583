"""The receipt of a conversion: what became of each attribute of an optimizer."""

from __future__ import annotations

import dataclasses
from typing import Iterator, List, Tuple

from ignite_ipu.cli.terminal import columns


@dataclasses.dataclass(frozen=True)
class Row:
    """One attribute.

    Attributes:
        attribute: Its name.
        value: Its value, or one for each parameter group.
        fate: `kept`, `mapped` to something that does the same, `substituted` by something close, `dropped`, or
            `refused`.
        on_device: `variable`, `constant` or `compiled in`; empty if it does not reach the device.
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
        return f"{self.title}\n{columns([header, *map(dataclasses.astuple, self.rows)])}"
