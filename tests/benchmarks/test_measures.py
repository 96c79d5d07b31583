"""Benchmarks compare work done in turns with an aim, and list the missed aims."""

from __future__ import annotations

import io

import pytest

from tests.benchmarks.measures import Measure, ratio, report


def test_the_ratio_is_that_of_pairs_taken_in_turns():
    """By a clock that each side moves on by its own time; the first call of each does not count."""
    now, calls = [0.0], []  # type: List[float], List[str]

    def work(name: str, taken: float) -> None:
        calls.append(name)
        now[0] += taken if len(calls) > 2 else 1000.0

    found = ratio("a", lambda: work("ours", 3.0), lambda: work("theirs", 2.0), 1.4, pairs=7, clock=lambda: now[0])
    assert found.value == pytest.approx(1.5) and found.both_sides == "3e+03 / 2e+03 ms"
    assert calls[2:] == ["theirs", "ours", "ours", "theirs"] * 3 + ["theirs", "ours"]


def test_a_report_counts_aims_that_are_missed_by_more_than_five_per_cent():
    """Within 5 % a row is met, which the line below the table tells apart."""
    rows = [Measure("a", 0.9, 1.0), Measure("b", 1.04, 1.0), Measure("c", 60.0, 40.0, "µs")]
    text = io.StringIO()
    assert report(rows, text) == 1
    assert text.getvalue().splitlines()[2:] == [
        "| a |  | 0.900 | 1.000 | met |",
        "| b |  | 1.040 | 1.000 | met within 5 % |",
        "| c |  | 60 µs | 40 µs | **missed** |",
        "",
        "1 of 3 aims are met; missed by more than 5 %: c (+50%).",
    ]
