"""Agreement of several processes, tried in one; test_launch.py trains in two."""

from __future__ import annotations

import pytest
import torch.distributed as dist
from torch import nn

from ignite_ipu import backend, create_ipu_trainer, ipu_train_batch
from ignite_ipu.errors import ProcessesError
from ignite_ipu.session.processes import describe_processes
from tests.supervised import pair, task


@pytest.fixture
def of_three(monkeypatch):
    """Pretend to be rank 1 of three connected processes."""
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(dist, "get_world_size", lambda: 3)
    return monkeypatch


def test_options_learn_of_the_connected_processes(of_three):
    options = backend.poptorch().Options()
    describe_processes(options)
    assert (options.Distributed.processId, options.Distributed.numProcesses) == (1, 3)
    describe_processes(options)  # they agree already


def test_options_of_another_number_of_processes_are_refused(of_three):
    options = backend.poptorch().Options()
    options.Distributed.configureProcessId(0, 2)
    with pytest.raises(ProcessesError, match="connects 3 processes, but the options describe 2"):
        describe_processes(options)


def test_a_pod_without_poprun_is_refused(of_three):
    of_three.setattr(backend, "is_emulator", lambda: False)
    with pytest.raises(ProcessesError, match="ignite-ipu launch"):
        describe_processes(backend.poptorch().Options())


def test_processes_that_are_not_connected_are_refused():
    options = backend.poptorch().Options()
    options.Distributed.configureProcessId(0, 2)
    with pytest.raises(ProcessesError, match=r'idist.Parallel\(backend="gloo"\)'):
        describe_processes(options)


def test_launched_processes_that_are_not_connected_are_refused(monkeypatch):
    """Each would train on all of the data, one step of `ignite-ipu launch` away from two models."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    model, optimizer = pair()
    with pytest.raises(ProcessesError, match=r"launcher has started 2 processes .* all of the data.*idist\.Parallel"):
        create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss())
    x, y = task(8).tensors
    with pytest.raises(ProcessesError, match="unset WORLD_SIZE"):
        ipu_train_batch(model, optimizer, nn.CrossEntropyLoss(), x, target=y)
    monkeypatch.setenv("WORLD_SIZE", "1")
    ipu_train_batch(model, optimizer, nn.CrossEntropyLoss(), x, target=y)
