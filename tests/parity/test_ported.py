"""Parity of ported code: each front door trains on the device as the same script does with the native backend."""

from __future__ import annotations

import pytest

from ignite_ipu.parity.report import as_text
from tests.parity.in_process import compare_both, line_of

HEAD = """
import os, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
rate = 0.02 if sys.argv[1] == os.environ["IGNITE_IPU_PARITY"] else 0.01
model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
loss_fn = nn.MSELoss()
x = torch.randn(8, 3)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=2, shuffle=True)
"""
ENGINES = """
from ignite.engine import Engine, Events
from ignite.metrics import Loss
from ignite_ipu import create_ipu_evaluator, create_ipu_trainer, ipu_step
TRAINER
evaluator = create_ipu_evaluator(model, {"loss": Loss(loss_fn)})
@trainer.on(Events.EPOCH_COMPLETED)
def validate():
    evaluator.run(loader)
    print("validation", round(evaluator.state.metrics["loss"], 4))
trainer.run(loader, max_epochs=2)
"""
STEP = """
@ipu_step
def step(engine, batch):
    model.train()
    optimizer.zero_grad()
    inputs, targets = batch
    loss = loss_fn(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.item()
trainer = Engine(step)
"""
PREPARE = """
from ignite_ipu import ipu_prepare
ipu_prepare(optimizer, model)
for inputs, targets in loader:
    optimizer.zero_grad()
    loss = loss_fn(model(inputs), targets)
    loss.backward()
    optimizer.step()
    print(loss.item())
model.eval()
with torch.no_grad():
    model(x)
"""
ACCELERATOR = """
from ignite_ipu import IPUAccelerator
accelerator = IPUAccelerator(gradient_accumulation_steps=2)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for inputs, targets in loader:
    with accelerator.accumulate(model):
        loss = loss_fn(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
model.eval()
with torch.no_grad():
    accelerator.gather_for_metrics(model(x))
"""
TRAINER = "trainer = create_ipu_trainer(model, optimizer, loss_fnSETTINGS)"
ACCUMULATED = ", gradient_accumulation_steps=2"
DOORS = {
    "create_ipu_trainer": ENGINES.replace("TRAINER", TRAINER).replace("SETTINGS", ""),
    "gradient accumulation": ENGINES.replace("TRAINER", TRAINER).replace("SETTINGS", ACCUMULATED),
    "ipu_step": ENGINES.replace("TRAINER", STEP).replace("SETTINGS", ""),
    "ipu_prepare": PREPARE,
    "IPUAccelerator": ACCELERATOR,
}
UPDATES = {"gradient accumulation": 4, "IPUAccelerator": 2, "ipu_prepare": 4}


@pytest.mark.parametrize("door", DOORS)
def test_each_door_trains_as_with_the_native_backend(door, tmp_path):
    parity = compare_both(HEAD + DOORS[door], tmp_path, "neither")
    assert parity.agrees, as_text(parity)
    counts = parity.counts()
    expected = {"hyper-parameter", "gradient", "parameter", "optimizer state", "buffer", "random numbers"}
    loop = door in ("ipu_prepare", "IPUAccelerator")
    expected |= {"loss", "evaluation"} if loop else {"engine output", "metric", "event", "printed line"}
    assert expected <= set(counts) and parity.updates == UPDATES.get(door, 6)


@pytest.mark.parametrize("door", DOORS)
def test_an_error_that_only_the_device_has_is_found(door, tmp_path):
    text = HEAD + DOORS[door]
    parity = compare_both(text, tmp_path, "device")
    first = parity.first
    assert first is not None and first.kind == "hyper-parameter" and first.update == 0
    line = "trainer.run(" if "create_ipu_trainer" in DOORS[door] and door != "ipu_step" else "optimizer.step()"
    assert line in line_of(parity, "parameter", text)


SEVERAL = ENGINES.replace("TRAINER", TRAINER).replace(
    "SETTINGS", ", config={'device_iterations': 2, 'output_mode': MODE}"
)


@pytest.mark.parametrize("mode", ["All", "Final"])
def test_calls_of_several_updates_are_compared_after_each_call(mode, tmp_path):
    """Every second update has weights, buffers and an optimizer's state on the device, and each iteration a loss."""
    parity = compare_both(HEAD + SEVERAL.replace("MODE", repr(mode)), tmp_path, "neither")
    assert parity.agrees, as_text(parity)
    found = {kind: {each.update for each in parity.differences if each.kind == kind} for kind in parity.counts()}
    assert found["hyper-parameter"] == {0, 2, 4} and found["parameter"] == found["buffer"] == {1, 3, 5}
    losses = [each for each in parity.differences if (each.kind, each.name) == ("engine output", "engine 0")]
    assert parity.updates == 6 and len(losses) == 3


@pytest.mark.parametrize(("planted", "first"), [("rate", ("hyper-parameter", 0)), ("weights", ("parameter", 3))])
def test_an_error_in_a_call_of_several_updates_is_found(planted, first, tmp_path):
    """A learning rate, and weights that are written after the first call."""
    text = HEAD + SEVERAL.replace("MODE", "'All'")
    if planted == "weights":
        edit = """
@trainer.on(Events.ITERATION_COMPLETED(once=1))
def edit():
    with torch.no_grad():
        model[0].weight.add_(rate - 0.01)
"""
        text = text.replace("lr=rate", "lr=0.01").replace("evaluator =", f"{edit}evaluator =", 1)
    parity = compare_both(text, tmp_path, "device")
    assert parity.first is not None and (parity.first.kind, parity.first.update) == first


def test_a_comparison_that_would_end_within_a_call_is_refused(tmp_path):
    with pytest.raises(AssertionError, match=r"ParityError: Each device call makes 2 updates.*a multiple of 2"):
        compare_both(HEAD + SEVERAL.replace("MODE", "'All'"), tmp_path, "neither", updates=5)
