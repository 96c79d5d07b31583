"""Copies of a model that is being trained on an IPU are ordinary models with the newest weights."""

from __future__ import annotations

import copy
import io

import torch
from torch import nn
from torch.utils.data import DataLoader

from ignite_ipu import create_ipu_trainer
from tests.supervised import task


def test_a_deep_copy_with_buffers_is_ordinary_and_independent():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss())
    loader = DataLoader(task(), batch_size=16)
    trainer.run(loader, max_epochs=1)
    twin = copy.deepcopy(model)
    assert {type(tensor) for tensor in twin.parameters()} == {nn.Parameter}
    assert {type(tensor) for tensor in twin.buffers()} == {torch.Tensor}
    assert [p.requires_grad for p in twin.parameters()] == [p.requires_grad for p in model.parameters()]
    newest = copy.deepcopy(model.state_dict())
    assert all(torch.equal(value, newest[name]) for name, value in twin.state_dict().items())
    trainer.run(loader, max_epochs=2)
    assert all(torch.equal(value, newest[name]) for name, value in twin.state_dict().items())
    assert not torch.equal(model.state_dict()["2.weight"], newest["2.weight"])
    # Trained in eager PyTorch, pickled and copied again: nothing of PopTorch is left in it.
    twin(torch.randn(4, 6)).sum().backward()
    assert twin[2].weight.grad is not None
    file = io.BytesIO()
    torch.save(copy.deepcopy(twin).state_dict(), file)
    file.seek(0)
    assert torch.load(file, weights_only=True).keys() == newest.keys()
    trainer.ipu.close()


def test_shared_tensors_stay_shared_in_a_copy():
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3))
    model[1].weight = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss())
    trainer.run(DataLoader(task(), batch_size=16), max_epochs=1)
    twin = copy.deepcopy(model)
    assert twin[1].weight is twin[0].weight
    trainer.ipu.close()
