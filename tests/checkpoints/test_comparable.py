"""Tensors as plain data come back as they were."""

from __future__ import annotations

import json

import pytest
import torch

from ignite_ipu.checkpoints.comparable import comparable, restored


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6).reshape(2, 3).t(),
        torch.tensor(1.5),
        torch.tensor([True, False]),
        torch.zeros(0, 3),
        torch.tensor([1.0, float("nan")], dtype=torch.bfloat16),
    ],
    ids=str,
)
def test_tensors_come_back(tensor):
    again = restored(json.loads(json.dumps(comparable({"a": [tensor, "text", 2]}))))["a"]
    assert again[0].dtype is tensor.dtype and again[1:] == ["text", 2]
    torch.testing.assert_close(again[0], tensor, equal_nan=True)
    assert comparable(tensor) == comparable(tensor.clone())


def test_tensors_of_older_files_stay_what_they_are():
    old = {"state": torch.zeros(2), "pair": (torch.ones(1), None)}
    assert restored(old)["state"] is old["state"] and restored(old)["pair"] == old["pair"]
