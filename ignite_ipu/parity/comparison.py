"""`compare`: the records of a script's two runs, value by value."""

from __future__ import annotations

import math
import re
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from ignite_ipu.parity.differences import EXACT, Difference, Distance, ScriptParity
from ignite_ipu.parity.fingerprints import Fingerprint, distance, each_fingerprint, joined
from ignite_ipu.parity.rounding import Rounding

_OF_UPDATES = ("gradient", "parameter", "optimizer state", "buffer", "random numbers")
_FLOOR = 1e-5
_NUMBER = re.compile(r"[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?")
# Times and speeds differ between any two runs.
_TIMES = re.compile(
    r"\d+:\d\d(?::\d\d)?(?:\.\d+)?|[-+]?\d[\d.]*(?:e[-+]?\d+)?\s*(?:ms|us|s|secs?|seconds?|minutes?|min|h|hours?|\w+/s)\b"
)


def compare(host: Mapping[str, Any], device: Mapping[str, Any], tolerance: float) -> ScriptParity:
    """Compare the records of two runs.

    Args:
        host, device: The records.
        tolerance: Part of the largest value of a tensor that results may differ by.
    """
    of_host, of_device = (list(single_entries(record["entries"])) for record in (host, device))
    of_host = _without_inner(of_host, of_device)
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


def _without_inner(host: List[Mapping[str, Any]], device: List[Mapping[str, Any]]) -> List[Mapping[str, Any]]:
    """Leave out values of the host from between the updates of one device call, where the device has none.

    Hyper-parameters are compared before the first update of a call, and all other values after the last.
    """
    lasts = {entry["update"]: entry["updates"] for entry in device if "updates" in entry}
    if not lasts:
        return host
    later = {update for last, updates in lasts.items() for update in range(last - updates + 2, last + 1)}
    earlier = {update - 1 for update in later}

    def is_inner(entry: Mapping[str, Any]) -> bool:
        if entry["kind"] == "hyper-parameter":
            return entry["update"] in later
        return entry["kind"] in _OF_UPDATES and entry["update"] in earlier

    return [entry for entry in host if not is_inner(entry)]


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
    if kind in EXACT:
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
