"""A sample of random programs compares as the campaign's do, and a difference is found and cut down to its cause."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import List, Tuple

import pytest
import torch

from ignite_ipu.parity.differences import Difference
from tests.differential import parts, program, refusals
from tests.differential.__main__ import main
from tests.differential.campaign import Verdicts, explained, shrunk
from tests.differential.comparing import TOLERANCE, Verdict, grows_from_rounding, judge, run
from tests.differential.ingredients import INGREDIENTS
from tests.differential.program import Edit, Program, draw
from tests.differential.rendering import render
from tests.scripts import Scripts

#: Of the sample's programs; another one is another sample.
SEED = int(os.environ.get("IGNITE_IPU_DIFFERENTIAL_SEED", "0"))
SAMPLE, TOGETHER = 20, 4

# Layers, a schedule, an interruption and handlers, of which one thing alone is planted to do otherwise on a device.
PLANTED = Program(
    seed=5,
    model="mlp",
    optimizer="adam",
    schedule="exponential",
    data="shuffled",
    updates=2,
    calls=3,
    epochs=2,
    handlers=("average", "evaluate"),
    edits=(Edit("learning rate", "iteration", 2), Edit("read state", "epoch", 1)),
    story="more epochs",
)


@pytest.mark.parametrize("first", range(0, SAMPLE, TOGETHER))
def test_a_sample_of_programs(first: int) -> None:
    """Losses, weights, states, metrics, rates and events are the native ones, or the device refuses by name."""
    found = [explained(SEED, number) for number in range(first, first + TOGETHER)]
    failures = [f"{verdict.text}\n{script}" for verdict, script in found if verdict.fails]
    assert not failures, "\n".join(failures)


@pytest.fixture
def _plant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(parts.EDITS, "learning rate", 'optimizer.param_groups[0]["lr"] = 0.2 if device else 0.3')


@pytest.mark.usefixtures("_plant")
def test_a_difference_is_cut_down_to_its_cause(tmp_path: Path, scripts: Scripts) -> None:
    """The simplest program with the edit is left, whose script shows the difference by itself."""
    verdict = judge(PLANTED)
    assert verdict.fails and verdict.text.startswith("printed line of ")
    least, last = shrunk(PLANTED, verdict)
    assert last.fails and least == Program(edits=(Edit("learning rate", "iteration", 1),))
    script = tmp_path / "program.py"
    script.write_text(render(least))
    notes = [scripts.run(script, "emulator", side).output.split("loss\n")[1:] for side in ("native", "device")]
    assert notes[0][0] == notes[1][0] and notes[0][1] != notes[1][1]


def test_a_refusal_that_is_not_expected_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refusals outside the list are never counted as refused, let alone as the same."""
    refused = Program(optimizer="adagrad")
    assert judge(refused).kind == "refused"
    monkeypatch.setattr("tests.differential.comparing.REFUSALS", refusals.REFUSALS[1:])
    verdict = judge(refused)
    assert verdict.fails and "OptimizerError" in verdict.text


def test_an_error_of_the_comparison_is_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """A campaign goes on after a program that its comparison cannot judge, and names the error."""
    monkeypatch.setattr("tests.differential.comparing.compare", None)
    verdict = judge(Program())
    assert verdict.kind == "crash" and verdict.fails and verdict.error.startswith("TypeError: 'NoneType'")
    assert "in parity_of" in verdict.text


def test_an_interrupted_campaign_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The verdicts of an interrupted campaign stay in its file, and only the other programs are run afterwards."""
    played: List[int] = []

    def judged(seed: int, number: int, shrinks: bool) -> Tuple[Verdict, str]:
        if len(played) == 2:
            raise KeyboardInterrupt
        played.append(number)
        return (Verdict("different", "of weights", "weight"), "script") if number == 1 else (Verdict("same"), "")

    monkeypatch.setattr("tests.differential.campaign.explained", judged)
    command = ["differential", "--seed", "7", "--count", "3", "--verdicts", str(tmp_path / "verdicts.jsonl")]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(KeyboardInterrupt):
        main()
    assert played == [0, 1]
    played.clear()
    assert main() == 1 and played == [2]
    assert "3 programs, 1 of them in 0 s: 2 same, 1 different" in capsys.readouterr().out
    assert Verdicts(tmp_path / "verdicts.jsonl", 8).known == {}


def test_a_difference_that_rounding_makes_natively_is_none_of_the_device() -> None:
    """Gradients that are rounded otherwise make a difference as large on the host; a larger one is the device's."""
    steep = Program(seed=798, front="step", optimizer="rmsprop with momentum", calls=5, ingredients=("by classes",))
    expected, error = run(steep, device=False)
    assert error is None
    names = [entry["name"] for entry in expected if entry["name"].startswith("weights")]
    for size, grows in ((1e-9, True), (1e-2, False)):
        first = Difference("printed line", names[0], 0, None, size, size / 2)
        assert grows_from_rounding(steep, expected, first) is grows


def test_no_optimizer_makes_updates_of_rounding() -> None:
    """With every optimizer, gradients of 1e-9 move weights apart by less than the tolerance."""
    for name, text in parts.OPTIMIZERS.items():
        weights = torch.nn.Parameter(torch.full((2,), 0.5))
        optimizer = eval(text.format(groups="[weights]"), {"torch": torch, "weights": weights})
        for _ in range(5):
            weights.grad = torch.tensor([1e-9, -1e-9])
            optimizer.step()
        assert abs(float(weights.detach().diff())) < TOLERANCE, name


def test_programs_are_reproducible_and_cover_every_part() -> None:
    """Seed and number alone determine a program, and each part is in some program of a campaign."""
    drawn = [draw(3, number) for number in range(900)]  # the rarest is number 644
    assert [draw(3, number) for number in range(100)] == drawn[:100] and draw(4, 0) != drawn[0]
    for table, name in (
        (parts.MODELS, "model"),
        (parts.LOSSES, "loss"),
        (parts.OPTIMIZERS, "optimizer"),
        (parts.GROUPS, "groups"),
        (parts.SCHEDULES, "schedule"),
        (program.DATA, "data"),
    ):
        assert {getattr(each, name) for each in drawn} == set(table)
    assert {(each.front, each.story) for each in drawn} == {
        (front, story) for front, stories in program.STORIES.items() for story in stories
    }
    assert {handler for each in drawn for handler in each.handlers} == {
        handler for handlers in program.HANDLERS.values() for handler in handlers
    }
    assert {edit.what for each in drawn for edit in each.edits} == set(parts.EDITS)
    assert {name for each in drawn for name in each.ingredients} == set(INGREDIENTS)
    assert any(each.faults for each in drawn) and any(each.replicas > 1 and each.updates > 1 for each in drawn)
