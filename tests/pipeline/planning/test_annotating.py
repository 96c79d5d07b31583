"""Plans written into a copy of the model's source: it trains as `pipeline=plan` does, by the same placement."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ignite_ipu.emulator as poptorch
from ignite_ipu import create_ipu_trainer
from ignite_ipu.cli.command import main
from ignite_ipu.cli.targets import load_factory
from ignite_ipu.pipeline import PlanError, Strategy, annotated_source, configure, measure, plan

SOURCE = '''
"""A model of the user's, and factories."""

import torch
from torch import nn


class Net(nn.Module):
    class Settings:
        def __init__(self):
            self.embed = None

    def __init__(self, width=8):
        super().__init__()
        self.embed = nn.Embedding(7, width)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.head = nn.Linear(width, 7)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = x + block(x).relu()
        return self.head(x)


def own():
    torch.manual_seed(3)
    return Net(), torch.zeros(4, dtype=torch.long)


def library():
    torch.manual_seed(3)
    if torch.is_grad_enabled():
        return (
            nn.Sequential(nn.Embedding(7, 8), *(nn.Linear(8, 8) for _ in range(3)), nn.Linear(8, 7)),
            torch.zeros(4, dtype=torch.long),
        )
    return None
'''
STRATEGY = Strategy(pipelined=True, recompute=True, offload_optimizer=True)


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "planned_net.py"
    path.write_text(SOURCE)
    return path


def planned(factory):
    model, inputs = factory()
    return model, plan(measure(model, inputs), 4, accumulation=8, device_iterations=2, strategy=STRATEGY)


def trained(model, tmp_path, monkeypatch, **settings):
    """Return the weights after an epoch, and the graph: each operator with its IPU and its stage."""
    monkeypatch.setenv("POPTORCH_EXPORT_PROTO_FILE", str(tmp_path / "graph.txt"))
    tokens = torch.arange(128) % 7
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5)
    trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss(), **settings)
    trainer.run(DataLoader(TensorDataset(tokens, (3 * tokens + 1) % 7), batch_size=4))
    trainer.ipu.close()
    return model.state_dict(), re.sub(r"  # .*", "", (tmp_path / "graph.txt").read_text())


@pytest.mark.parametrize("name", ["own", "library"])
def test_the_written_source_trains_as_the_plan_does(source, tmp_path, monkeypatch, name):
    """For a class of the user's own and for one of a library: the same weights, keys, options and places."""
    model, found = planned(load_factory(f"{source}:{name}"))
    origin, text = annotated_source(found, model, load_factory(f"{source}:{name}"))
    assert origin == source
    copy = tmp_path / "annotated_net.py"
    copy.write_text(text)
    annotated = load_factory(f"{copy}:{name}")()[0]
    options = load_factory(f"{copy}:ipu_options")()
    both = [
        each.clone().outputMode(poptorch.OutputMode.All) for each in (options, configure(found, poptorch.Options()))
    ]
    told = [{**each.toDict(), "compilation_progress_bar_fn": None} for each in both]
    assert told[0] == told[1]
    weights, places = trained(annotated, tmp_path, monkeypatch, options=options)
    expected, expected_places = trained(model, tmp_path, monkeypatch, pipeline=found)
    torch.testing.assert_close(weights, expected, rtol=0, atol=0)
    assert places == expected_places and "[ipu 3 stage 3" in places


def test_the_command_writes_a_copy(source, tmp_path, capsys):
    """Never over the source itself, and not for annotated models."""
    out = tmp_path / "annotated_net.py"
    question = ["plan", f"{source}:own", "--ipus", "2", "--ipus-per-replica", "2"]
    assert main([*question, "--annotate", str(out)]) == 0
    assert "options=ipu_options()" in capsys.readouterr().out
    written = out.read_text()
    assert 'poptorch.BeginBlock(self.embed, "embed", ipu_id=0)' in written
    kept = iter(written.splitlines())
    assert all(line in kept for line in SOURCE.splitlines())
    for target, file, message in (
        (f"{source}:own", source, "is the model's source itself"),
        (f"{out}:own", tmp_path / "again.py", "has annotations already"),
    ):
        assert main(["plan", target, *question[2:], "--annotate", str(file)]) == 2
        assert message in capsys.readouterr().err


def test_what_annotations_cannot_say_is_refused(source):
    """One stage, layers that run twice, and models that no source makes."""
    make = load_factory(f"{source}:own")
    model, inputs = make()
    with pytest.raises(PlanError, match="one stage: there is nothing to annotate"):
        annotated_source(plan(measure(model, inputs), 1), model, make)
    twice = nn.Sequential(nn.Embedding(7, 8), *[nn.Linear(8, 8)] * 2)
    found = plan(measure(twice, inputs), 2, accumulation=8)
    with pytest.raises(PlanError, match="1#2 run more than once"):
        annotated_source(found, twice)
    chain = nn.Sequential(nn.Embedding(7, 8), nn.Linear(8, 8))
    with pytest.raises(PlanError, match="in no source file of yours"):
        annotated_source(plan(measure(chain, inputs), 2, accumulation=8), chain)
