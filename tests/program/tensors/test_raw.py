"""Properties of tensors can be read while the newest weights stay on the device."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader

import ignite_ipu.emulator as poptorch
from ignite_ipu import create_ipu_trainer
from ignite_ipu.program.tensors.raw import (
    dtype_of,
    gradient_of,
    plain,
    requires_grad,
    set_gradient,
    shape_of,
)
from ignite_ipu.torch_names.tensors import version_of
from tests.supervised import pair, task


def test_looks_cost_no_download():
    """They return the same as in eager PyTorch, for the host's memory."""
    model, optimizer = pair()
    trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss(), config={"weight_sync": "on demand"})
    before = [parameter.detach().clone() for parameter in model.parameters()]
    parameters = list(model.parameters())
    trainer.run(DataLoader(task(), batch_size=8))
    counted = poptorch.counters()
    for parameter, value in zip(parameters, before):
        with torch._C.DisableTorchFunctionSubclass():
            assert (shape_of(parameter), dtype_of(parameter)) == (value.shape, torch.float32)
            assert requires_grad(parameter) is True and version_of(parameter) == plain(parameter)._version
            set_gradient(parameter, value)
            assert gradient_of(parameter) is value
        ordinary = plain(parameter)
        assert type(ordinary) is torch.Tensor and not ordinary.requires_grad
        assert torch.equal(ordinary, value)
    assert (poptorch.counters() - counted).weight_downloads == 0
    assert not torch.equal(parameters[0].detach(), before[0])
    assert (poptorch.counters() - counted).weight_downloads == 1
    assert torch.equal(plain(parameters[0]), parameters[0])
