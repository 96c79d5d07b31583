"""`ignite-ipu plan --script` plans the update of a script, which trains nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ignite_ipu import backend
from ignite_ipu.cli.command import main
from ignite_ipu.pipeline import load_plan

LOOP = """
import sys
import torch
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(4))).to(device)
optimizer = torch.optim.Adam(model.parameters())
for number in range(16):
    (model(torch.randn(2, 16).to(device)).square().mean() / 8).backward()
    if number % 8 == 7:
        optimizer.step()
        optimizer.zero_grad()
print("trained", sys.argv[1], f"{model(torch.ones(1, 16).to(device)).sum().item():.4f}")
"""
TWO_MODELS = """
import torch
from torch import nn

class Encoder(nn.Linear):
    pass

class Decoder(nn.Linear):
    pass

encoder, decoder = Encoder(4, 4), Decoder(4, 4)
optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.1)
decoder(encoder(torch.ones(2, 4))).sum().backward()
optimizer.step()
"""
TRAINER = """
import torch
from ignite.engine import create_supervised_trainer
from torch import nn

model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
trainer = create_supervised_trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss())
trainer.run([(torch.ones(2, 4), torch.ones(2, 1))] * 4)
print("trained")
"""


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the command for a text; returns the exit code."""
    monkeypatch.setenv(backend.VARIABLE, "emulator")
    monkeypatch.chdir(tmp_path)

    def run(text: str, *arguments: str, script: str = "train.py", given: Any = ()) -> int:
        Path(script).write_text(text)
        return main(["plan", *arguments, "--script", script, *given])

    return run


def test_the_update_of_a_loop_is_planned_saved_and_trains(plan, capsys):
    """With the micro-batches that the loop has, whose numbers stay those of one IPU."""
    assert plan(LOOP, "--ipus", "2", "--ipus-per-replica", "2", "--save", "plan.json", given=["6"]) == 0
    printed = capsys.readouterr().out
    assert "at train.py:13, has 8 x 2 samples" in printed.replace(f"{Path.cwd()}/", "")
    assert "pipeline='plan.json'" in printed and "trained" not in printed
    found = load_plan("plan.json")
    assert (found.ipus_per_replica, found.accumulation, found.global_batch) == (2, 8, 16)
    for settings in ((), ("--set", "pipeline=plan.json")):
        assert main(["run", "--quiet", *settings, "train.py", "6"]) == 0
    first, second = (line for line in capsys.readouterr().out.splitlines() if line.startswith("trained"))
    assert first == second and first.startswith("trained 6")


def test_models_that_are_trained_together_get_a_place_each(plan, capsys):
    assert plan(TWO_MODELS, "--ipus", "2", "--ipus-per-replica", "2") == 0
    places = "pipeline={'Encoder': [('Encoder', 0)], 'Decoder': [('Decoder', 1)]}, execution='sharded'"
    assert places in capsys.readouterr().out
    assert plan(TWO_MODELS, "--ipus", "2", "--save", "plan.json") == 2
    assert "trains Encoder and Decoder together, and a plan is of one model" in capsys.readouterr().err


def test_a_trainer(plan, capsys):
    assert plan(TRAINER, "--ipus", "2", "--ipus-per-replica", "2") == 0
    printed = capsys.readouterr().out
    assert "has 1 x 2 samples" in printed and "trained" not in printed


def test_what_cannot_be_planned_is_said(plan, capsys):
    assert plan("print(1)") == 2
    assert "train.py has come to its end without an update of weights" in capsys.readouterr().err
    assert main(["plan"]) == 2
    assert "Give a model to plan: MODULE:FACTORY" in capsys.readouterr().err
    assert plan(LOOP, "--annotate", "copy.py") == 2
    assert "leave out the other" in capsys.readouterr().err
