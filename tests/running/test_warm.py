"""`ignite-ipu warm`: a later run finds all its programs in the cache; nothing is trained and no weights are written."""

from __future__ import annotations

import pytest

import ignite_ipu.emulator as poptorch
from ignite_ipu.cli.command import main

MODEL = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(36, 6), torch.randint(0, 3, (36,)))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.norm, self.head = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
    def forward(self, x):
        return self.head(self.norm(self.inner(x)) * torch.arange(8.0).exp().mul(2).log())

model = Net().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loss_fn = nn.CrossEntropyLoss()
"""
LOOP = (
    MODEL
    + """
for epoch in range(2):
    model.train()
    total = 0.0
    for x, y in DataLoader(data, batch_size=8):
        optimizer.zero_grad()
        loss = loss_fn(model(x.cuda()), y.cuda())
        loss.backward()
        optimizer.step()
        total += loss.item()
    model.eval()
    with torch.no_grad():
        right = sum(int((model(x.cuda()).argmax(1).cpu() == y).sum()) for x, y in DataLoader(data, batch_size=12))
    print(epoch, total, right)
with torch.no_grad():
    model(data[:20][0].cuda())  # reached at the end alone
torch.save(model.state_dict(), "model.pt")
print("saved")
"""
)
IGNITE = (
    MODEL
    + """
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.handlers import Checkpoint, DiskSaver
from ignite.metrics import Accuracy

trainer = create_supervised_trainer(model, optimizer, loss_fn, device="cuda")
evaluator = create_supervised_evaluator(model, {"accuracy": Accuracy()}, device="cuda")

@trainer.on(Events.EPOCH_COMPLETED)
def evaluate(engine):
    evaluator.run(DataLoader(data, batch_size=12))
    print(engine.state.output, evaluator.state.metrics["accuracy"])

import tempfile
with tempfile.TemporaryDirectory() as kept:
    torch.save(model.state_dict(), kept + "/before.pt")
    model.load_state_dict(torch.load(kept + "/before.pt"))
saver = Checkpoint({"model": model}, DiskSaver("checkpoints", create_dir=True, require_empty=False))
trainer.add_event_handler(Events.EPOCH_COMPLETED, saver)
trainer.run(DataLoader(data, batch_size=8, shuffle=True), max_epochs=2)
"""
)


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Return a function that runs a command on a script in an empty directory; it returns output and events."""
    monkeypatch.chdir(tmp_path)

    def call(command, text, *options, code=0):
        (tmp_path / "train.py").write_text(text)
        before = poptorch.counters()
        assert main([command, *options, "train.py"]) == code
        return capsys.readouterr(), poptorch.counters() - before

    return call


@pytest.mark.parametrize(("text", "programs"), [(LOOP, 4), (IGNITE, 3)], ids=["loop", "ignite"])
def test_the_run_finds_everything(run, tmp_path, text, programs):
    """Every program of the run is found; the rehearsal takes no IPUs, calls nothing, and writes no weights."""
    plain, without = run("run", text, "--quiet")
    files = {path: path.read_bytes() for path in tmp_path.rglob("*.pt")}
    (shown, _), events = run("warm", text, "--quiet", "--cache-dir", "cache")
    assert f"{programs} programs compiled into cache; the script would write weights" in shown
    assert (events.attaches, events.device_calls, events.cache_misses) == (0, 0, programs)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.pt")} == files
    assert list(tmp_path.rglob("*.pt")) == list(files)
    again, events = run("run", text, "--quiet", "--cache-dir", "cache")
    assert (events.cache_hits, events.cache_misses) == (without.compiles, 0)
    assert again.out == plain.out


def test_limits(run):
    """The script ends after device calls that compile nothing, or goes on after its saved state."""
    (shown, _), _ = run("warm", LOOP, "--quiet", "--cache-dir", "cache", "--calls", "3")
    assert "1 program compiled into cache; 3 device calls in a row needed nothing compiled, at " in shown
    assert "compiled: training of Net: (8, 6), (8,)\n" in shown and shown.count("training of Net: (8, 6)") == 1
    (shown, _), _ = run("warm", LOOP, "--quiet", "--cache-dir", "cache", "--saves")
    assert "saved\n4 programs compiled into cache; the script has come to its end" in shown


def test_replicas_accumulation_and_gradients(run):
    """Values of all micro-batches, and gradients that a loop looks at, have the shapes that the device's have."""
    text = (
        MODEL
        + """
for number, (x, y) in enumerate(DataLoader(data, batch_size=6)):
    loss = loss_fn(model(x), y)
    loss.backward()
    if number % 2:
        norm = max(float(p.grad.abs().max()) for p in model.parameters())
        optimizer.step()
        optimizer.zero_grad()
        print(loss.shape, norm >= 0)
"""
    )
    (shown, _), events = run("warm", text, "--quiet", "--cache-dir", "cache")
    assert events.device_calls == 0 and shown.count("torch.Size([]) True") == 3
    _, events = run("run", text, "--quiet", "--cache-dir", "cache")
    assert events.cache_misses == 0


def test_what_cannot_be_warmed(run, monkeypatch):
    """Without a cache, for a script of PopTorch's, and natively it prints the way out; without programs it fails."""
    assert "--cache-dir DIR" in run("warm", LOOP, code=2)[0].err
    assert "compileAndExport" in run("warm", "import poptorch", "--cache-dir", "cache", code=2)[0].err
    wrapped = "from ignite_ipu import backend\nimport torch\nbackend.poptorch().inferenceModel(torch.nn.Linear(1, 1))"
    assert "train.py:3 wraps a Linear by PopTorch" in run("warm", wrapped, "--cache-dir", "cache", code=2)[0].err
    assert "--calls 0" in run("warm", LOOP, "--cache-dir", "cache", "--calls", "0", code=2)[0].err
    assert "0 programs compiled" in run("warm", "print()", "--cache-dir", "cache", code=1)[0].out
    assert "0 programs compiled" in run("warm", "raise SystemExit(3)", "--cache-dir", "cache", code=3)[0].out
    monkeypatch.setenv("IGNITE_IPU_BACKEND", "native")
    assert "nothing to compile" in run("warm", LOOP, "--cache-dir", "cache", code=2)[0].err
