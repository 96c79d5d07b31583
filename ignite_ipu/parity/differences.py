"""The comparison of a script's two runs, as values: what differs, by how much, and how differences grow.

Reports need nothing else, so that the command that prints them imports no PyTorch.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Dict, List, Mapping, Optional, Tuple

KINDS = (
    *("loss", "hyper-parameter", "gradient", "parameter", "optimizer state", "buffer", "evaluation", "engine output"),
    *("metric", "event", "random numbers", "saved file", "printed line"),
)
"""Kinds of recorded values, in the order of the report."""

EXACT = ("hyper-parameter", "event", "random numbers", "gradient")
"""Kinds whose values have to be equal."""


@dataclasses.dataclass(frozen=True)
class Distance:
    """Distance of two fingerprints: `size` may be as large as `allowed`; a remark names another kind of difference."""

    size: float
    allowed: float
    remark: str = ""

    @property
    def agrees(self) -> bool:
        return not self.remark and self.size <= self.allowed


@dataclasses.dataclass(frozen=True)
class Difference:
    """Distance of one value of the two runs.

    Attributes:
        kind, name: Kind in `KINDS`, and the name of the parameter, buffer, file or line.
        update: Number of calls of `optimizer.step()` before the value was recorded.
        line: Line of the script, on the host or else on the device.
        size, allowed: Largest difference, and the largest that agrees.
        remark: Another difference than one of size.
    """

    kind: str
    name: str
    update: int
    line: Optional[str]
    size: float
    allowed: float
    remark: str = ""

    @property
    def agrees(self) -> bool:
        return Distance(self.size, self.allowed, self.remark).agrees

    @property
    def ratio(self) -> float:
        """The difference in units of the allowed one."""
        if self.agrees and not self.size:
            return 0.0
        return self.size / self.allowed if self.allowed else math.inf

    def __str__(self) -> str:
        place = f"{self.kind} of {self.name}" if self.kind != self.name else self.name
        where = "" if self.line is None else f", at {self.line}"
        what = self.remark or f"the difference is {self.size:.3g}, and {self.allowed:.3g} is allowed"
        return f"{place} in update {self.update + 1}{where}: {what}"


@dataclasses.dataclass(frozen=True)
class ScriptParity:
    """Comparison of the two runs of a script.

    Attributes:
        differences: Every compared value, in the order of the run on the host.
        updates: Updates of the run on the host.
        losses: Losses per backward pass, on the host and on the device.
        remarks: Changes that make the runs comparable, and values that could not be compared.
    """

    differences: Tuple[Difference, ...]
    updates: int
    losses: Tuple[Tuple[float, ...], Tuple[float, ...]]
    remarks: Tuple[str, ...]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ScriptParity:
        """Return the comparison that `to_dict` returned the values of."""
        host, device = values["losses"]
        differences = tuple(Difference(**each) for each in values["differences"])
        return cls(differences, values["updates"], (tuple(host), tuple(device)), tuple(values["remarks"]))

    def to_dict(self) -> Dict[str, Any]:
        """Return plain values, as JSON has them."""
        return {**vars(self), "differences": [vars(each) for each in self.differences]}

    @property
    def first(self) -> Optional[Difference]:
        """The first value that does not agree."""
        return next((each for each in self.differences if not each.agrees), None)

    @property
    def agrees(self) -> bool:
        return self.first is None

    def counts(self) -> Dict[str, int]:
        """Return the number of compared values of each kind."""
        found = {kind: sum(each.kind == kind for each in self.differences) for kind in KINDS}
        return {kind: count for kind, count in found.items() if count}

    def growth(self) -> List[Tuple[int, float]]:
        """Return the largest difference of each update, in units of the allowed one.

        Values that have to be equal, such as rates, count only if no other value differs.
        """
        sized = [each for each in self.differences if not each.remark and each.kind not in EXACT]
        largest: Dict[int, float] = {}
        for each in self.differences if all(each.agrees for each in sized) else sized:
            largest[each.update] = max(largest.get(each.update, 0.0), each.ratio)
        return sorted(largest.items())
