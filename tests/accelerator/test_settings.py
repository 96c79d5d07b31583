"""An accelerator takes the same `IPUConfig` as trainers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ignite_ipu import IPUAccelerator, IPUConfig, OptionsError, ipu_prepare
from ignite_ipu.deferred import captured
from ignite_ipu.errors import CaptureError
from tests.supervised import pair, task


def test_accelerates_own_arguments_are_taken_from_it(tmp_path):
    """Its values are in the checkpoint, too."""
    config = IPUConfig(gradient_accumulation_steps=4, mixed_precision="fp16", seed=3)
    accelerator = IPUAccelerator(config=config)
    assert accelerator.gradient_accumulation_steps == 4 and accelerator.mixed_precision == "fp16"
    accelerator.save_state(tmp_path)
    assert IPUConfig.load(tmp_path) == accelerator.config == config


def test_what_is_said_twice_must_be_the_same():
    with pytest.raises(OptionsError, match="gradient_accumulation_steps is 4 in the config but the arguments say 2"):
        IPUAccelerator(gradient_accumulation_steps=2, config={"gradient_accumulation_steps": 4})
    with pytest.raises(CaptureError, match=r"weight_sync is 'epoch', but weights of a captured loop are copied when"):
        IPUAccelerator(config={"weight_sync": "epoch"})


def test_replicas_share_the_micro_batches_of_an_update(monkeypatch, tmp_path):
    """Of eight IPUs four are used where an update has four micro-batches."""
    monkeypatch.setenv("IGNITE_IPU_EMULATED_IPUS", "8")
    monkeypatch.setenv("IGNITE_IPU_RUNTIME_DIR", str(tmp_path))
    accelerator = IPUAccelerator(gradient_accumulation_steps=4, replication_factor="auto")
    model, native = pair()[0], pair()[0]
    prepared, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    x, y = task().tensors
    for rows, targets in zip(x.split(16), y.split(16)):
        with accelerator.accumulate(prepared):
            accelerator.backward(nn.functional.cross_entropy(prepared(rows), targets))
            optimizer.step()
            optimizer.zero_grad()
    nn.functional.cross_entropy(native(x), y).backward()
    torch.optim.SGD(native.parameters(), lr=0.1).step()
    assert captured(prepared).session.training.options.replication_factor == 4
    torch.testing.assert_close(model.state_dict(), native.state_dict(), rtol=1e-4, atol=1e-5)
    with pytest.raises(CaptureError, match="how many micro-batches replicas share is known after a step"):
        ipu_prepare(model, config={"replication_factor": "auto"})


def test_optimizer_state_of_a_loop_goes_off_the_chip():
    """As a trainer's does, without another result."""
    accelerator = IPUAccelerator(config={"offload": ["optimizer"]})
    model, native = pair()[0], pair()[0]
    steps = [torch.optim.AdamW(each.parameters(), lr=0.01) for each in (model, native)]
    x, y = task().tensors
    prepared, optimizer = accelerator.prepare(model, steps[0])
    for each, step, backward in (
        (prepared, optimizer, accelerator.backward),
        (native, steps[1], torch.Tensor.backward),
    ):
        for _ in range(2):
            backward(nn.functional.cross_entropy(each(x), y))
            step.step()
            step.zero_grad()
    locations = captured(prepared).session.training.options.TensorLocations
    assert locations.location_optimizer["onChip"] == 0
    torch.testing.assert_close(model.state_dict(), native.state_dict(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("made", ["before prepare", "after prepare"])
def test_a_substitute_trains_a_loop_with_its_scheduler(made):
    """As the closest optimizer does in eager PyTorch, with the rates and momenta of a schedule."""
    accelerator = IPUAccelerator(config={"substitute": "closest"})
    model, native = pair()[0], pair()[0]
    steps = [torch.optim.NAdam(model.parameters(), lr=0.01), torch.optim.Adam(native.parameters(), lr=0.01)]

    def scheduled(optimizer):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=4)

    schedules = [scheduled(steps[0]) if made == "before prepare" else None, scheduled(steps[1])]
    model, optimizer = accelerator.prepare(model, steps[0])
    schedule = accelerator.prepare(schedules[0] or scheduled(steps[0]))
    x, y = task().tensors
    for each, step, rates, backward in (
        (model, optimizer, schedule, accelerator.backward),
        (native, steps[1], schedules[1], torch.Tensor.backward),
    ):
        for _ in range(3):
            backward(nn.functional.cross_entropy(each(x), y))
            step.step()
            rates.step()
            step.zero_grad()
    torch.testing.assert_close(model.state_dict(), native.state_dict(), rtol=1e-4, atol=1e-5)
