"""Benchmarks compare work done in turns with an aim and a limit, and list the missed aims."""

from __future__ import annotations

import io
from typing import Callable, List
from unittest import mock

import pytest

from tests.benchmarks import measures
from tests.benchmarks.measures import Measure, exponent, ratio, report


class Clock:
    """A clock that works move on by their own time; the first call of each does not count."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: List[str] = []

    def work(self, name: str, taken: float) -> Callable[[], None]:
        def run() -> None:
            self.now += taken if name in self.calls else 1000.0
            self.calls.append(name)

        return run

    def __call__(self) -> float:
        return self.now


def test_the_ratio_is_that_of_pairs_taken_in_turns():
    clock = Clock()
    found = ratio("a", clock.work("ours", 3.0), clock.work("theirs", 2.0), 1.4, pairs=7, clock=clock)
    assert found.value == pytest.approx(1.5) and found.both_sides == "3e+03 / 2e+03 ms" and found.limit is None
    assert clock.calls[2:] == ["theirs", "ours", "ours", "theirs"] * 3 + ["theirs", "ours"]


def test_the_limit_is_measured_in_the_same_turns():
    clock = Clock()
    works = [clock.work(name, taken) for name, taken in (("ours", 3.0), ("theirs", 2.0), ("least", 2.5))]
    found = ratio("a", works[0], works[1], 1.1, pairs=7, clock=clock, least=works[2])
    assert (found.value, found.limit) == (pytest.approx(1.5), pytest.approx(1.25))
    assert clock.calls[3:9] == ["least", "theirs", "ours", "ours", "theirs", "least"]


def test_a_row_ends_with_its_time():
    """Of many pairs that are wanted, seven are measured."""
    clock = Clock()
    with mock.patch.object(measures, "SECONDS", -1.0):
        ratio("a", clock.work("ours", 3.0), clock.work("theirs", 2.0), 1.4, pairs=100, clock=clock)
    assert clock.calls.count("ours") == 1 + measures.PAIRS


def test_a_report_counts_aims_that_are_missed_by_more_than_five_per_cent():
    """Within 5 % a row is met; one whose limit is above the aim is compared with the limit."""
    rows = [
        Measure("a", 0.9, 1.0),
        Measure("b", 1.04, 1.0),
        Measure("c", 60.0, 40.0, "µs"),
        Measure("d", 1.24, 1.0, limit=1.2),
        Measure("e", 1.5, 1.0, limit=1.2),
    ]
    text = io.StringIO()
    assert report(rows, text) == 2
    assert text.getvalue().splitlines()[2:] == [
        "| a |  | 1.000 | 0.900 |  | met |",
        "| b |  | 1.000 | 1.040 |  | met within 5 % |",
        "| c |  | 40 µs | 60 µs |  | **missed** |",
        "| d | 1.200 | 1.000 | 1.240 |  | at the limit |",
        "| e | 1.200 | 1.000 | 1.500 |  | **missed** |",
        "",
        "1 of 5 aims are met; missed by more than 5 %: c (+50%), e (+25%).",
    ]


def test_the_exponent_of_a_power_law():
    assert exponent([1, 10, 100], [2, 20, 200]) == pytest.approx(1)
    assert exponent([1, 10, 100], [5, 5, 5]) == pytest.approx(0)
