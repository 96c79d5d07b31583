"""The recorder keeps values as they are when they are recorded."""

from __future__ import annotations

import numpy
import pytest
import torch
from ignite.engine import Engine
from torch import nn

from ignite_ipu import ipu_prepare
from ignite_ipu.parity.comparison import single_entries
from ignite_ipu.parity.recorder import Recorder


def test_a_value_that_waits_for_its_update_is_read_when_it_is_recorded():
    """Later its gradients may be dropped, or weights written."""
    model = nn.Linear(2, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ipu_prepare(optimizer, model)
    x = torch.ones(4, 2)
    expected = nn.functional.linear(x, model.weight.detach().clone(), model.bias.detach().clone())
    entry = Recorder(1).record("printed line", "scores", model(x).detach())
    with torch.no_grad():
        model.weight.zero_()
    torch.testing.assert_close(entry["value"]["values"], expected)


def test_an_output_of_an_engine_whose_gradients_were_dropped_is_not_known():
    """No device computes it, and the record has no value that would be read later."""
    torch.manual_seed(0)
    model = nn.Linear(2, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ipu_prepare(optimizer, model)

    def step(engine, batch):
        optimizer.zero_grad()
        scores = model(batch)
        scores.pow(2).mean().backward()
        if engine.state.iteration == 2:
            optimizer.step()
        return scores.detach()

    recorder = Recorder(1)
    recorder.start()
    try:
        Engine(step).run([torch.ones(4, 2)] * 2)
    finally:
        recorder.stop()
    first, second = (entry["value"] for entry in recorder.entries if entry["kind"] == "engine output")
    assert first is None and type(second["values"]) is torch.Tensor


@pytest.mark.parametrize("value", [numpy.ones(3), {1, 2}, object()])
def test_a_saved_object_without_tensors_is_recorded_by_its_type(value):
    entry = Recorder(1).record("saved file", "file", value)
    assert entry["value"] == {"kind": "text", "value": type(value).__name__}


@pytest.mark.skipif(not hasattr(torch.amp, "GradScaler"), reason="PyTorch has no scaler for CPUs")
def test_a_loss_is_recorded_as_it_is_before_it_is_scaled():
    """A device scales no loss of a loop."""
    weight = nn.Parameter(torch.ones(3))
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    recorder = Recorder(1)
    recorder.start()
    try:
        scaler.scale(weight.sum()).backward()
    finally:
        recorder.stop()
    assert [entry["value"]["value"] for entry in recorder.entries] == [3.0]
    assert weight.grad.tolist() == [8.0] * 3


def test_a_recorded_weight_of_one_tensor_stays_as_it_was():
    """A single tensor is copied as several are."""
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    recorder = Recorder(2)
    recorder.start()
    try:
        for _ in range(2):
            optimizer.zero_grad()
            weight.sum().backward()
            optimizer.step()
    finally:
        recorder.stop()
    recorded = [entry["many"]["values"].tolist() for entry in recorder.entries if entry["kind"] == "parameter"]
    assert recorded == [[0.5] * 3, [0.0] * 3]


def test_a_record_of_an_optimizers_state_changes_nothing_that_the_script_has(caplog):
    """The state that a script kept follows the device's only where the script asks for it, as without a recorder."""
    torch.manual_seed(0)
    model = nn.Linear(2, 3)
    optimizer = torch.optim.Adam(model.parameters())
    ipu_prepare(optimizer, model)
    recorder = Recorder(3)
    recorder.start()
    try:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(4, 2)).pow(2).mean().backward()
            optimizer.step()
    finally:
        recorder.stop()
    *_, last = [entry for entry in recorder.entries if entry["kind"] == "optimizer state"]
    expected = [part for state in optimizer.state_dict()["state"].values() for part in state.values()]
    recorded = [each["value"] for each in single_entries([last])]
    assert len(recorded) == len(expected) == 6
    for found, part in zip(recorded, expected):
        torch.testing.assert_close(torch.as_tensor(found.get("values", found.get("value"))), part)
    assert "keeps a state_dict()" not in caplog.text
