"""Errors of a port of a whole experiment: each is planted into the device's run, and found with its kind and line."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Tuple

import pytest

from ignite_ipu.parity.child import HOST
from tests.parity.in_process import compared, line_of, record

SCRIPT = """
import os, sys
import torch
from ignite.engine import Engine, Events, create_supervised_evaluator
from ignite.metrics import Loss
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

planted = sys.argv[1] if os.environ["IGNITE_IPU_PARITY"] == "device" else ""
device = "cuda" if torch.cuda.is_available() else "cpu"


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.register_buffer("scale", torch.ones(2))

    def forward(self, x):
        return self.linear(x) * self.scale


generator = torch.Generator().manual_seed(0)
training, validation = (
    TensorDataset(torch.randn(12, 3, generator=generator), torch.rand(12, generator=generator).round().long())
    for _ in range(2)
)
encoder = nn.Sequential(nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4), nn.Tanh()).to(device)
head = Head().to(device)
if planted == "a buffer of the second model":
    head.scale.mul_(1.1)
means = [parameter.detach().clone() for parameter in head.parameters()]


def make_optimizer():
    rate = 0.06 if planted == "a rate of one group" else 0.05
    groups = [{"params": list(encoder.parameters()), "lr": 0.1}, {"params": list(head.parameters()), "lr": rate}]
    return torch.optim.SGD(groups, momentum=0.9)


def loss_of(scores, targets):
    smoothing = 0.2 if planted == "label smoothing" else 0.1
    wanted = nn.functional.one_hot(targets, 2) * (1 - smoothing) + smoothing / 2
    penalty = scores.pow(2).mean()
    weight = 0.4 if planted == "the weight of a loss" else 0.5
    return -(wanted * scores.log_softmax(1)).sum(1).mean() + weight * penalty


def step(engine, batch):
    x, y = (each.to(device) for each in batch)
    encoder.train()
    head.train()
    optimizer.zero_grad()
    loss = loss_of(head(encoder(x)), y)
    loss.backward()
    optimizer.step()
    scheduler.step()
    if planted == "a schedule stepped twice" and engine.state.iteration == 2:
        scheduler.step()
    decay = 0.95 if planted == "the decay of a mean" else 0.9
    with torch.no_grad():
        for mean, parameter in zip(means, head.parameters()):
            mean.lerp_(parameter.detach().to("cpu"), 1 - decay)
    return loss.item()


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.head = encoder, head

    def forward(self, x):
        return self.head(self.encoder(x))


trainer = Engine(step)
evaluator = create_supervised_evaluator(Both(), {"loss": Loss(nn.functional.cross_entropy)}, device=device)
ends = Events.EPOCH_COMPLETED(once=1) if planted == "a skipped end of an epoch" else Events.EPOCH_COMPLETED


@trainer.on(ends)
def finish():
    split = training if planted == "a metric of the wrong split" else validation
    evaluator.run(DataLoader(split, batch_size=4))
    print("validation", round(evaluator.state.metrics["loss"], 3))
    best = 0.5 if planted == "an entry of a file" else None
    torch.save({"mean": means, "optimizer": optimizer.state_dict(), "best": best}, sys.argv[2])


sampled = torch.Generator().manual_seed(4 if planted == "the seed of a sampler" else 3)
loader = DataLoader(training, batch_size=4, sampler=RandomSampler(training, generator=sampled))
optimizer = make_optimizer()
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
trainer.run(loader, max_epochs=1)
optimizer = make_optimizer()
if planted != "state lost where training resumes":
    optimizer.load_state_dict(torch.load(sys.argv[2])["optimizer"])
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
trainer.run(loader, max_epochs=2)
"""

PLANTED: Dict[str, Tuple[str, str]] = {
    "a rate of one group": ("hyper-parameter", "optimizer.step()"),
    "a schedule stepped twice": ("hyper-parameter", "optimizer.step()"),
    "a metric of the wrong split": ("metric", "evaluator.run("),
    "a buffer of the second model": ("buffer", "optimizer.step()"),
    "state lost where training resumes": ("optimizer state", "optimizer.step()"),
    "a skipped end of an epoch": ("metric", "evaluator.run("),
    "the decay of a mean": ("saved file", "torch.save("),
    "an entry of a file": ("saved file", "torch.save("),
    "the seed of a sampler": ("loss", "loss.backward()"),
    "label smoothing": ("loss", "loss.backward()"),
    "the weight of a loss": ("loss", "loss.backward()"),
}
"""Errors: the kind of value that is found to differ, and the line that is named."""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Tuple[Path, Dict[str, Any]]:
    """The script, and its record on the host, where nothing is planted."""
    script = tmp_path_factory.mktemp("loops") / "train.py"
    script.write_text(SCRIPT)
    return script, record(script, HOST, "", str(script.with_name("file.pt")))


def test_the_experiment_is_the_same_without_an_error(host: Tuple[Path, Dict[str, Any]]) -> None:
    script, of_host = host
    parity = compared(of_host, script, "", str(script.with_name("file.pt")))
    assert parity.agrees, str(parity.first)
    assert parity.updates == 6 and parity.counts()["metric"] >= 2


@pytest.mark.parametrize("planted", PLANTED)
def test_an_error_is_found_with_its_line(planted: str, host: Tuple[Path, Dict[str, Any]]) -> None:
    script, of_host = host
    parity = compared(of_host, script, planted, str(script.with_name("file.pt")))
    kind, line = PLANTED[planted]
    assert line in line_of(parity, kind, SCRIPT)
