"""The residual network trains in one and in two instances as plain PyTorch does on whole batches."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from ignite_ipu.emulator import install
from ignite_ipu.emulator.popdist.instances import Job
from tests.together import run_in_instances

_PROGRAM = Path(__file__).parent / "resnet.py"


@pytest.fixture(scope="module")
def program():
    with install():
        spec = importlib.util.spec_from_file_location("resnet", _PROGRAM)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module


def plain(program, instances, replicas):
    """Each instance reads its own range of the data; an update takes a batch from every one of them."""
    data = program.make_data(program.UPDATES * program.BATCH * 2 * replicas)
    model = program.make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    ranges = torch.arange(len(data)).reshape(instances, program.UPDATES, -1)
    for update in range(program.UPDATES):
        images, labels = data[ranges[:, update].flatten()]
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
    return model.state_dict(), loss.detach()


def check(path, wanted):
    found = torch.load(path)
    weights, loss = wanted
    assert found["loss"].item() == pytest.approx(loss.item(), rel=1e-3)
    for name, value in weights.items():
        assert torch.allclose(found["weights"][name], value, atol=1e-4), name


def test_alone(program, tmp_path):
    program.main(str(tmp_path / "weights.pt"))
    check(tmp_path / "weights.pt", plain(program, 1, 1))


def test_in_two_instances_with_two_replicas_each(program, tmp_path):
    run_in_instances(_PROGRAM, str(tmp_path / "weights.pt"), job=Job(instances=2, replicas=4))
    check(tmp_path / "weights.pt", plain(program, 2, 4))
