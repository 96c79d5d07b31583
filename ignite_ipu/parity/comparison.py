"""Two records of a script compared: the first difference, and how differences grow from update to update."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from ignite_ipu.parity.fingerprints import Distance, Fingerprint, distance, each_fingerprint, joined
from ignite_ipu.parity.rounding import Rounding

KINDS = (
    *("loss", "hyper-parameter", "gradient", "parameter", "optimizer state", "buffer", "evaluation", "engine output"),
    *("metric", "event", "random numbers", "saved file", "printed line"),
)
"""Kinds of recorded values, in the order of the report."""

_EXACT = ("hyper-parameter", "event", "random numbers", "gradient")
_FLOOR = 1e-5
_NUMBER = re.compile(r"[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?")
# Times and speeds differ between any two runs.
_TIMES = re.compile(
    r"\d+:\d\d(?::\d\d)?(?:\.\d+)?|[-+]?\d[\d.]*(?:e[-+]?\d+)?\s*(?:ms|us|s|secs?|seconds?|minutes?|min|h|hours?|\w+/s)\b"
)


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
        sized = [each for each in self.differences if not each.remark and each.kind not in _EXACT]
        largest: Dict[int, float] = {}
        for each in self.differences if all(each.agrees for each in sized) else sized:
            largest[each.update] = max(largest.get(each.update, 0.0), each.ratio)
        return sorted(largest.items())


def compare(host: Mapping[str, Any], device: Mapping[str, Any], tolerance: float) -> ScriptParity:
    """Compare the records of two runs.

    Args:
        host, device: The records.
        tolerance: Part of the largest value of a tensor that results may differ by.
    """
    of_host, of_device = (list(single_entries(record["entries"])) for record in (host, device))
    mine, theirs = _sequences(of_host), _sequences(of_device)
    rounding = Rounding(mine, theirs)
    remarks = [*_remarks(host, mine, theirs), *rounding.remarks()]
    found: List[Tuple[int, Difference]] = []
    for key, entries in mine.items():
        others = theirs.get(key, [])
        if key[0] == "loss" and not others:
            continue
        found += _compared(key, entries, others, tolerance, rounding)
    for key, others in theirs.items():
        if key not in mine:
            entry = others[0][1]
            remark = f"recorded {len(others)} times on the device, and never on the host"
            found.append((len(of_host), _difference(key, entry, Distance(math.inf, 0.0, remark))))
    found.sort(key=lambda pair: pair[0])
    updates = 1 + max((entry["update"] for entry in of_host if entry["kind"] == "parameter"), default=-1)
    losses = (tuple(_losses(mine)), tuple(_losses(theirs)))
    return ScriptParity(tuple(difference for _, difference in found), updates, losses, tuple(remarks))


def single_entries(entries: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the entries of a record, each of one value."""
    for entry in entries:
        if "many" not in entry:
            yield entry
            continue
        for name, value in zip(entry["names"], each_fingerprint(entry["many"])):
            yield {**entry, "name": name, "value": value}


Key = Tuple[str, str]
Numbered = List[Tuple[int, Mapping[str, Any]]]


def _sequences(entries: Sequence[Mapping[str, Any]]) -> Dict[Key, Numbered]:
    found: Dict[Key, Numbered] = {}
    for number, entry in enumerate(entries):
        found.setdefault((entry["kind"], entry["name"]), []).append((number, entry))
    return found


def _compared(
    key: Key, entries: Numbered, others: Numbered, tolerance: float, rounding: Rounding
) -> Iterator[Tuple[int, Difference]]:
    entries = _of_calls(key[0], entries, others)
    for (number, entry), (_, other) in zip(entries, others):
        native, device = entry["value"], other["value"]
        if native is not None and device is not None:
            device = rounding.removed(*key, entry["update"], native, device)
        yield number, _difference(key, entry, _distance(key[0], native, device, tolerance))
    if len(entries) != len(others):
        shorter = min(len(entries), len(others))
        number, entry = (entries if len(entries) > len(others) else others)[shorter]
        remark = f"recorded {len(entries)} times on the host, and {len(others)} times on the device"
        yield number, _difference(key, entry, Distance(math.inf, 0.0, remark))


def _of_calls(kind: str, entries: Numbered, others: Numbered) -> Numbered:
    """Return the host's entries of an engine, one for each iteration on the device, which may have several batches.

    Outputs of the batches are averaged or come after one another, or they are the last one's if the device returns no
    more. The number of an epoch's iterations counts calls of the device. A script may make its batches smaller for the
    device: then both sides have as many iterations.
    """
    if all(other.get("batches", 1) == 1 for _, other in others):
        return entries
    if kind == "engine output" and len(entries) == len(others):
        return entries
    if kind == "event":
        pairs = zip(entries, others)
        return [(number, {**entry, "value": _in_calls(entry["value"], other)}) for (number, entry), (_, other) in pairs]
    found: Numbered = []
    place = 0
    for _, other in others:
        part = entries[place : place + other["batches"]]
        place += len(part)
        if part:
            number, last = part[-1]
            found.append((number, {**last, "value": joined([entry["value"] for _, entry in part], other)}))
    return found + entries[place:]


def _in_calls(iterations: Fingerprint, other: Mapping[str, Any]) -> Fingerprint:
    """Return the number of device calls for a number of iterations; an epoch may end with a smaller call."""
    calls = float(-(-int(iterations["value"]) // int(other["batches"])))
    return iterations if iterations["value"] == other["value"]["value"] else {**iterations, "value": calls}


def _difference(key: Key, entry: Mapping[str, Any], found: Distance) -> Difference:
    return Difference(*key, entry["update"], entry["line"], found.size, found.allowed, found.remark)


def _distance(kind: str, native: Optional[Fingerprint], device: Optional[Fingerprint], tolerance: float) -> Distance:
    if native is None or device is None:
        return Distance(0.0, 0.0)
    if kind == "printed line" and native["kind"] == device["kind"] == "text":
        return _of_lines(native["value"], device["value"], tolerance)
    if kind in _EXACT:
        return distance(native, device, 1e-7, 1e-12)
    return distance(native, device, tolerance, _FLOOR)


def _of_lines(native: str, device: str, tolerance: float) -> Distance:
    """Compare two lines: their words, and their numbers to the last printed digit; times are left out."""
    mine, theirs = (_TIMES.sub("#", line) for line in (native, device))
    different = Distance(math.inf, 0.0, f"{native!r} is {device!r}")
    if _NUMBER.sub("", mine) != _NUMBER.sub("", theirs):
        return different
    worst = Distance(0.0, _FLOOR)
    for one, other in zip(_NUMBER.findall(mine), _NUMBER.findall(theirs)):
        apart = abs(float(one) - float(other))
        allowed = tolerance * abs(float(one)) + _unit(one) * 1.01
        if not apart <= allowed:
            return different
        if apart * worst.allowed > worst.size * allowed:
            worst = Distance(apart, allowed)
    return worst


def _unit(number: str) -> float:
    """Return one unit of the last printed digit; 0 for an integer, which is exact."""
    digits, _, exponent = number.lower().partition("e")
    _, point, decimals = digits.partition(".")
    return float(10 ** (int(exponent or 0) - len(decimals))) if point or exponent else 0.0


def _losses(entries: Mapping[Key, Numbered]) -> Iterator[float]:
    for _, entry in entries.get(("loss", "loss"), []):
        value = entry["value"]
        if value is not None and value["kind"] == "number":
            yield value["value"]


def _remarks(host: Mapping[str, Any], mine: Mapping[Key, Numbered], theirs: Mapping[Key, Numbered]) -> Iterator[str]:
    if host["dropout"]:
        yield f"Dropout is switched off in both runs: {', '.join(host['dropout'])}. --keep-dropout leaves it on."
    if ("loss", "loss") in mine and ("loss", "loss") not in theirs:
        yield "The device's trainer makes no backward() calls: losses are compared as outputs of its engine."
    dropped = sum(entry["value"] is None for _, entry in theirs.get(("loss", "loss"), []))
    if dropped:
        yield f"{dropped} losses do not exist on the device: no update came of them, and the script does not read them."
