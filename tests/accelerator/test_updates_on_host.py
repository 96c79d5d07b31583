"""Loops of accelerate and steps of Ignite whose updates PyTorch makes on the host, against native runs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from ignite.engine import Engine, Events
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ignite_ipu import IPUConfig, ipu_step
from ignite_ipu.deferred.accelerator import IPUAccelerator
from tests.accelerate_state import forget

X = torch.randn(32, 6, generator=torch.Generator().manual_seed(1))
Y = torch.arange(32) % 3
HOST = IPUConfig(update="host")


def network():
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))


def trained(accelerator, folder):
    """Return the results of a loop over accumulated batches, whose second epoch begins from a saved state."""
    model = network()
    optimizer = torch.optim.NAdam(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    loader = DataLoader(TensorDataset(X, Y), batch_size=4)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    seen = []
    for epoch in range(3):
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    seen.append(float(accelerator.clip_grad_norm_(model.parameters(), 0.5)))
                    accelerator.clip_grad_value_(model.parameters(), 0.1)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
                seen.append(accelerator.gather(loss).item())
        if epoch == 0:
            accelerator.save_state(str(folder))
        elif epoch == 1:
            accelerator.load_state(str(folder))
    return seen, dict(accelerator.unwrap_model(model).state_dict()), schedule.get_last_lr()


def test_a_loop_of_accelerate(tmp_path):
    """Gradients accumulate, are clipped by norm and by value, and the state is saved and loaded."""
    found = []
    for kind, settings in ((Accelerator, {"cpu": True}), (IPUAccelerator, {"config": HOST})):
        forget()
        accelerator = kind(gradient_accumulation_steps=2, **settings)
        found.append(trained(accelerator, tmp_path / kind.__name__))
    forget()
    native, ours = found
    torch.testing.assert_close(ours, native, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("update", ["auto", "host"])
@pytest.mark.parametrize("kind", [torch.optim.LBFGS, torch.optim.Adagrad, torch.optim.Adam])
def test_a_closure_of_accelerate(kind, update):
    """The step of an optimizer that accelerate wraps calls it."""
    found = []
    for make, settings in ((Accelerator, {"cpu": True}), (IPUAccelerator, {"config": IPUConfig(update=update)})):
        forget()
        accelerator, model = make(**settings), network()
        model, optimizer = accelerator.prepare(model, kind(model.parameters(), lr=0.05))
        losses = []

        def closure(accelerator=accelerator, model=model, optimizer=optimizer, losses=losses):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(X[:8]), Y[:8])
            accelerator.backward(loss)
            losses.append(loss.detach())
            return loss

        for _ in range(3):
            optimizer.step(closure)
        found.append(([loss.item() for loss in losses], dict(accelerator.unwrap_model(model).state_dict())))
    forget()
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [torch.optim.LBFGS, torch.optim.Rprop])
def test_a_step_of_ignite(kind):
    found = []
    for captures in (False, True):
        model = network()
        optimizer = kind(model.parameters(), lr=0.05)

        def step(engine, batch, model=model, optimizer=optimizer):
            x, y = batch

            def closure():
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                return loss

            return optimizer.step(closure).item()

        engine = Engine(ipu_step(step, model=model, optimizer=optimizer, config=HOST) if captures else step)
        outputs = []
        keep = outputs.append
        engine.add_event_handler(Events.ITERATION_COMPLETED, lambda engine, keep=keep: keep(engine.state.output))
        engine.run([(X[:8], Y[:8]), (X[8:16], Y[8:16])], max_epochs=3)
        found.append((outputs, dict(model.state_dict())))
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-6)
