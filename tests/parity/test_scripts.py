"""Parity of scripts finds an error of any kind that is planted into the device's run, and names its line."""

from __future__ import annotations

import json
import subprocess
from unittest import mock

import pytest

from ignite_ipu.cli import main
from ignite_ipu.parity import pair
from ignite_ipu.parity.child import HOST, write_record
from ignite_ipu.parity.report import as_html, as_json, as_text
from tests.parity.in_process import compare_both, compared, line_of, record

SCRIPT = """
import os, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from ignite.engine import Engine, Events
from ignite.metrics import RunningAverage
planted = sys.argv[1] if os.environ["IGNITE_IPU_PARITY"] == "device" else ""
device = "cuda" if torch.cuda.is_available() else "cpu"
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(3, 4), nn.Linear(4, 4, bias=False), nn.Linear(4, 1)
        self.norm = nn.BatchNorm1d(4)
        self.unused = nn.Linear(2, 2)
    def forward(self, x):
        x = self.last(self.norm(self.inner(torch.tanh(self.first(x)))))
        return x + 0 * self.unused.weight.sum() if planted == "a gradient that should be None" else x
model = Net().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
if planted == "a rate":
    optimizer.param_groups[0]["lr"] = 0.011
if planted == "a frozen layer":
    model.first.requires_grad_(False)
def seed_worker(number):
    torch.manual_seed(1 if planted == "a seed of a worker" else 0)
class Noisy(TensorDataset):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x + torch.randn(3) * 0.1, y
generator = torch.Generator().manual_seed(0)
data = Noisy(torch.randn(24, 3, generator=generator), torch.randn(24, 1, generator=generator))
loader = DataLoader(data, batch_size=4, num_workers=WORKERS, worker_init_fn=seed_worker)
def step(engine, batch):
    x, y = batch
    optimizer.zero_grad()
    loss = (model(x.to(device)) - y.to(device)).pow(2).mean()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5 if planted == "a clip" else 0.6)
    if planted == "a dropped update" and engine.state.iteration == 3:
        return 0.0
    optimizer.step()
    return loss.item()
trainer = Engine(step)
RunningAverage(output_transform=lambda loss: loss + (planted == "a metric")).attach(trainer, "average")
@trainer.on(Events.ITERATION_COMPLETED(every=2))
def evaluate():
    if planted == "a buffer":
        model.norm.running_mean.add_(1.0)
    if planted == "the order of draws":
        torch.rand(1)
    model.eval()
    with torch.no_grad():
        found = model(torch.ones(2, 3, device=device))
    model.train()
    torch.save({"weights" if planted != "a file's key" else "model": model.state_dict()}, sys.argv[2])
    print("output", round(found.sum().item(), 3), "!" if planted == "a print" else "")
trainer.run(loader, max_epochs=1, epoch_length=5 if planted == "an event count" else 6)
"""


PLANTED = {
    "a rate": ("hyper-parameter", "optimizer.step()"),
    "a frozen layer": ("parameter", "optimizer.step()"),
    "a buffer": ("evaluation", "found = model("),
    "a dropped update": ("hyper-parameter", "optimizer.step()"),
    "the order of draws": ("random numbers", "optimizer.step()"),
    "a metric": ("metric", "trainer.run("),
    "a file's key": ("saved file", "torch.save("),
    "an event count": ("event", "trainer.run("),
    "a clip": ("optimizer state", "optimizer.step()"),
    "a gradient that should be None": ("gradient", "optimizer.step()"),
    "a print": ("printed line", "print("),
}
"""Errors by what they change: the kind that is found first, and the line that is named."""


@pytest.fixture
def script() -> str:
    return SCRIPT.replace("WORKERS", "0")


def test_a_script_that_is_the_same(script, tmp_path):
    parity = compare_both(script, tmp_path, "", str(tmp_path / "file.pt"))
    assert parity.agrees, as_text(parity)
    counts = parity.counts()
    assert set(counts) == {
        *("loss", "hyper-parameter", "gradient", "parameter", "optimizer state", "buffer", "evaluation"),
        *("engine output", "metric", "event", "random numbers", "saved file", "printed line"),
    }
    assert (counts["loss"], counts["evaluation"], counts["printed line"]) == (6, 3, 3)


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    """The script, and its record on the host, where nothing is planted."""
    path = tmp_path_factory.mktemp("scripts") / "train.py"
    path.write_text(SCRIPT.replace("WORKERS", "0"))
    return path, record(path, HOST, "", str(path.with_name("file.pt")))


@pytest.mark.parametrize("planted", PLANTED)
def test_planted_errors_are_found_with_their_line(planted, host):
    path, of_host = host
    parity = compared(of_host, path, planted, str(path.with_name("file.pt")))
    kind, line = PLANTED[planted]
    assert line in line_of(parity, kind, path.read_text())


def test_a_seed_of_a_worker_changes_the_first_loss(tmp_path):
    script = SCRIPT.replace("WORKERS", "1")
    parity = compare_both(script, tmp_path, "a seed of a worker", str(tmp_path / "file.pt"))
    first = parity.first
    assert first is not None and (first.kind, first.update) == ("loss", 0)


def test_reports_have_the_verdict_the_line_and_the_growth(script, tmp_path):
    parity = compare_both(script, tmp_path, "a rate", str(tmp_path / "file.pt"))
    text = as_text(parity)
    assert "They differ. First: hyper-parameter of Adam 0, group 0, lr in update 1, at " in text
    assert "0.001, and 1e-09 is allowed" in text
    kinds = [line.split(" of ")[0].strip() for line in text.splitlines() if line.startswith("  then ")]
    assert kinds[0] == "then parameter" and "then optimizer state" in kinds
    growth = text.splitlines()[-1].split()
    assert growth[:3:2] == ["1:", "2:"] and 1 < float(growth[1]) < float(growth[3]) < 100
    document = json.loads(as_json(parity))
    assert document["first"]["kind"] == "hyper-parameter" and len(document["losses"]["host"]) == 6
    page = as_html(parity, "train.py")
    assert page.count("<svg") == 2 and "Different" in page and "http" not in page.replace("http-equiv", "")


def test_large_tensors_are_compared_by_projections(tmp_path):
    """A single element that differs is found, with about its size; and element by element if that is asked for."""
    text = """
import os, torch
model = torch.nn.Linear(100, 100)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    optimizer.zero_grad()
    model(torch.ones(1, 100)).pow(2).mean().backward()
    optimizer.step()
    if os.environ["IGNITE_IPU_PARITY"] == "device":
        with torch.no_grad():
            model.weight[3, 4] += 0.5
"""
    sizes = []
    for everything in (False, True):
        parity = compare_both(text, tmp_path, everything=everything)
        found = [each for each in parity.differences if each.kind == "parameter" and not each.agrees]
        assert found[0].name == "weight" and found[0].update == 1
        sizes.append(found[0].size)
    assert sizes == pytest.approx([0.5, 0.5], rel=0.2)


@pytest.fixture
def _forked(monkeypatch, processes):
    """Have the command's processes forked."""
    monkeypatch.setattr(subprocess, "run", processes.run_command)


@pytest.mark.usefixtures("_forked")
def test_the_command_runs_both_in_fresh_processes_and_ends_long_scripts(tmp_path, capsys):
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, torch\n"
        "model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.5), torch.nn.Linear(2, 1))\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=float(sys.argv[1]))\n"
        "while True:\n    optimizer.zero_grad()\n    model(torch.randn(4, 2)).pow(2).mean().backward()\n"
        "    optimizer.step()\n"
    )
    page = tmp_path / "page.html"
    assert main(["parity", str(script), "--updates", "2", "--html", str(page), "--", "0.1"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("2 updates compared: 2 of loss, ") and "the same." in printed
    assert "Dropout is switched off in both runs: dropout." in printed
    assert "The same" in page.read_text()


@pytest.mark.usefixtures("_forked")
def test_a_run_that_is_killed_is_named_with_its_signal(tmp_path, capsys):
    script = tmp_path / "train.py"
    script.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    assert main(["parity", str(script)]) == 2
    assert "The run on the host ended with exit code -9 and left no record." in capsys.readouterr().err


@pytest.fixture
def _in_process(monkeypatch):
    """Run the processes of `ignite-ipu parity` in this one."""

    def run(words, env, **_):
        with mock.patch.dict("os.environ", env):
            pair.main(json.loads(words[-1]))
        return subprocess.CompletedProcess(words, 0)

    def forked(request):
        with mock.patch.dict("os.environ"):
            write_record(request)
        return 0

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(pair, "forked", forked)


LOOP = """
import os, random, sys
import numpy
import torch
model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if os.environ["IGNITE_IPU_PARITY"] in sys.argv:
    BODY
for _ in range(3):
    optimizer.zero_grad()
    noise = torch.randn(4, 2) + random.random() + numpy.random.rand()
    model(noise).pow(2).mean().backward()
    optimizer.step()
"""


@pytest.mark.usefixtures("_in_process")
@pytest.mark.parametrize(
    ("body", "side", "code", "text"),
    [
        ("pass", "host", 0, "3 updates compared"),
        ("optimizer.param_groups[0]['lr'] = 0.2", "device", 1, "They differ. First: hyper-parameter"),
        ("raise ValueError('no data')", "host", 2, "The run on the host failed: ValueError: no data"),
        ("raise ValueError('no data')", "device", 2, "The run on the device failed: ValueError: no data"),
        ("sys.exit(0)", "device", 2, "The run on the device made no call of optimizer.step()"),
        ("model[0].register_full_backward_hook(print)", "device", 2, "The run on the device failed: RunError: "),
    ],
)
def test_exit_codes(body, side, code, text, tmp_path, capsys):
    """0 for the same, 1 for a difference, 2 for runs that cannot be compared."""
    script = tmp_path / "train.py"
    script.write_text(LOOP.replace("BODY", body))
    assert main(["parity", str(script), "--", side]) == code
    printed = capsys.readouterr()
    assert text in (printed.err if code == 2 else printed.out)


@pytest.mark.usefixtures("_in_process")
def test_dropout_stays_on_if_asked_for(tmp_path, capsys):
    """The device draws other numbers, so losses differ; without the option they are the same."""
    script = tmp_path / "train.py"
    script.write_text(LOOP.replace("BODY", "pass"))
    assert main(["parity", str(script), "--keep-dropout"]) == 1
    printed = capsys.readouterr().out
    assert "They differ. First: loss" in printed and "Dropout is switched off" not in printed


def test_workers_get_the_same_seeds(tmp_path):
    """Of torch, numpy and random, which a data set draws from."""
    text = """
import random
import numpy
import torch
from torch.utils.data import DataLoader
class Noise(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return torch.tensor([torch.rand(()).item(), numpy.random.rand(), random.random()])
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in DataLoader(Noise(), batch_size=2, num_workers=2, shuffle=True):
    optimizer.zero_grad()
    model(batch).pow(2).mean().backward()
    optimizer.step()
    print(batch.tolist())
"""
    parity = compare_both(text, tmp_path)
    assert parity.agrees and parity.counts()["printed line"] == 4, as_text(parity)
    assert not compared(record(tmp_path / "train.py", HOST), tmp_path / "train.py", seed=1).agrees
