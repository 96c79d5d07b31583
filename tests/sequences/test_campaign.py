"""A campaign plays each of its seeds once, and shows what differs from PyTorch."""

from __future__ import annotations

import pytest

from tests.sequences import campaign
from tests.sequences.campaign import Chunk, play
from tests.sequences.playing import Outcome


def test_parts_have_each_seed_once() -> None:
    parts = Chunk(first=500, count=2300, update="device").parts()
    seeds = [seed for part in parts for seed in range(part.first, part.first + part.count)]
    assert seeds == list(range(500, 2800))
    assert {part.update for part in parts} == {"device"}


def test_outcomes_are_counted_and_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = {7: Outcome("same"), 8: Outcome("refused", "too large"), 9: Outcome("different", "a weight")}
    monkeypatch.setattr(campaign, "random_sequence", lambda seed, worlds: seed)
    monkeypatch.setattr(campaign, "outcome_of", lambda sequence, update, spread: outcomes[sequence])
    played = play(Chunk(first=7, count=3))
    assert dict(played.kinds) == {"same": 1, "refused": 1, "different": 1, "crash": 0}
    assert dict(played.reasons) == {"too large": 1}
    assert played.shows_fault
    assert capsys.readouterr().out == "9 different: a weight\n    9\n"


def test_a_sequence_of_each_refusal_is_shown_if_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(campaign, "random_sequence", lambda seed, worlds: seed)
    monkeypatch.setattr(campaign, "outcome_of", lambda sequence, update, spread: Outcome("refused", "too large"))
    assert not play(Chunk(first=1, count=5, shows_refusals=True)).shows_fault
    assert capsys.readouterr().out == "1 refused: too large\n    1\n"


@pytest.mark.usefixtures("forks_spawned")
def test_processes_share_the_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of them, with the sums of one that plays all; some of these sequences are refused."""
    monkeypatch.setattr(campaign, "_SIZE", 3)
    chunk = Chunk(first=1000, count=6, update="device")
    alone, shared = play(chunk), play(chunk, processes=2)
    assert alone.kinds["refused"] and sum(alone.kinds.values()) == 6
    assert (shared.kinds, shared.reasons) == (alone.kinds, alone.reasons)
