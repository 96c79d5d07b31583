"""Models that scripts for GPUs have wrapped: the module inside trains, or the message names the argument to pass."""

from __future__ import annotations

import logging

import pytest
import torch
from ignite.engine import create_supervised_trainer
from torch import nn
from torch.utils.data import DataLoader

from ignite_ipu import create_ipu_trainer
from ignite_ipu.errors import ProcessesError, SessionError
from ignite_ipu.session.processes import unwrapped
from tests.supervised import assert_same_weights, network, task


def trained(create_trainer, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    create_trainer(model, optimizer, nn.functional.cross_entropy).run(DataLoader(task(), batch_size=16))
    return model


def test_torch_compile_is_left_out(caplog):
    """A device's program is compiled as a whole; the weights are those of the module inside."""
    with caplog.at_level(logging.WARNING, "ignite_ipu"):
        compiled = trained(create_ipu_trainer, torch.compile(network()))
    assert caplog.text.count("torch.compile of the Sequential is left out") == 1
    expected = trained(create_supervised_trainer, network())
    assert_same_weights(compiled._orig_mod, expected)
    assert list(compiled.state_dict()) == [f"_orig_mod.{name}" for name in expected.state_dict()]
    inputs = task()[:4][0]
    assert torch.equal(compiled.eval()(inputs), compiled._orig_mod(inputs))


def test_a_part_that_torch_compile_has_wrapped_is_compiled_with_the_model():
    def model():
        return nn.Sequential(torch.compile(network(), backend="eager"), nn.Identity())

    assert_same_weights(trained(create_ipu_trainer, model()), trained(create_supervised_trainer, model()))


def test_data_parallel_over_one_device_is_the_model_within():
    """As natively on a machine with one GPU or none."""
    wrapped = trained(create_ipu_trainer, nn.DataParallel(network()))
    assert_same_weights(wrapped.module, trained(create_supervised_trainer, network()))


def test_other_models_stay_as_they_are():
    model = network()
    assert unwrapped(model) is model


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_what_means_replicas_or_is_no_python_is_refused():
    wrapped = nn.DataParallel(network())
    wrapped.device_ids = [0, 1]
    with pytest.raises(ProcessesError, match=r"over the devices \[0, 1\].*replication_factor"):
        unwrapped(wrapped)
    for scripted in (torch.jit.script(network()), torch.jit.trace(network(), task()[:4][0])):
        with pytest.raises(SessionError, match=r"TorchScript.*Pass the module that it was made from"):
            trained(create_ipu_trainer, scripted)
        with pytest.raises(SessionError, match=r"has a part '0' that is a .*TorchScript"):
            trained(create_ipu_trainer, nn.Sequential(scripted))
