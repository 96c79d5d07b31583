"""Every value that a checkpoint may hold is read with every PyTorch, and no other object is made."""

from __future__ import annotations

import collections
import io
import os
import pickle

import pytest
import torch
from torch import nn

from ignite_ipu.checkpoints import CheckpointError, plain_pickle, read_checkpoint, resume_from, write_checkpoint

VALUES = {
    "counter": collections.Counter("abca"),
    "ordered": collections.OrderedDict(a=1),
    "set": {1, 2},
    "device": torch.device("cpu"),
    "size": torch.Size([2, 3]),
    "dtypes": [torch.bfloat16, torch.bool, torch.uint8, torch.float32],
    "numbers": (1, -(2**70), 1.5, None, True),
}


def test_values_come_back_as_they_were(tmp_path):
    """With their types."""
    write_checkpoint(tmp_path / "a.pt", VALUES)
    read = read_checkpoint(tmp_path / "a.pt")
    assert read == VALUES
    assert [type(value) for value in read.values()] == [type(value) for value in VALUES.values()]


def test_weights_come_back_as_they_were(tmp_path):
    """Of every type, shared as they were, and with the metadata of the module."""
    weights = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).state_dict()
    tensors = [torch.ones(2, 3).to(dtype) for dtype in (torch.float16, torch.bfloat16, torch.bool, torch.int64)]
    tensors += [tensors[0][1], nn.Parameter(torch.ones(2)), torch.ones(3, 2).t()]
    write_checkpoint(tmp_path / "a.pt", {"model": weights, "tensors": tensors})
    read = read_checkpoint(tmp_path / "a.pt")
    assert read["model"]._metadata == weights._metadata
    torch.testing.assert_close(read["model"], weights, rtol=0, atol=0)
    assert [type(tensor) for tensor in read["tensors"]] == [type(tensor) for tensor in tensors]
    torch.testing.assert_close(read["tensors"], tensors, rtol=0, atol=0)
    assert read["tensors"][4].untyped_storage().data_ptr() == read["tensors"][0].untyped_storage().data_ptr()


def test_a_run_with_milestones_goes_on(tmp_path):
    """`MultiStepLR` keeps them in a `Counter`."""
    schedulers = []
    for _ in range(2):
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
        schedulers.append(torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 3]))
    first, second = schedulers
    first.optimizer.step()
    first.step()
    write_checkpoint(tmp_path / "a.pt", {"scheduler": first.state_dict()})
    resume_from(tmp_path, {"scheduler": second})
    assert second.state_dict() == first.state_dict()
    assert isinstance(second.milestones, collections.Counter)


@pytest.mark.parametrize(
    ("pickled", "reason"),
    [
        (pickle.dumps(os.system, 2), r"holds a posix\.system"),
        (b"\x80\x02ctorch\nload\n.", r"holds a torch\.load"),
        (b"\x80\x02]}b.", "sets attributes of list"),
        (b"\x80\x02ccollections\nOrderedDict\n)R}N\x86b.", "sets attributes of OrderedDict"),
    ],
)
def test_it_makes_nothing_else(pickled, reason):
    """Whatever the pickle says."""
    with pytest.raises(CheckpointError, match=reason):
        plain_pickle.Unpickler(io.BytesIO(pickled)).load()
