"""Example batches that are not of one shape."""

from __future__ import annotations

CODE = """
import torch


def make():
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [(torch.ones(*shape), torch.zeros(*shape[:-1], 2)) for shape in {shapes}]
    return model, optimizer, torch.nn.MSELoss(), batches
"""


def test_another_length(traced):
    assert traced(CODE.format(shapes=[(8, 3, 4), (8, 5, 4), (8, 3, 4)])) == [(4, "changing-batch-shape")]


def test_another_number_of_samples_in_between(traced):
    assert traced(CODE.format(shapes=[(8, 4), (6, 4), (8, 4)])) == [(4, "changing-batch-shape")]


def test_a_smaller_last_batch_is_another_rules(traced):
    assert traced(CODE.format(shapes=[(8, 4), (8, 4), (6, 4)])) == [(4, "ragged-last-batch")]


def test_one_shape(traced):
    assert traced(CODE.format(shapes=[(8, 4), (8, 4)])) == []
