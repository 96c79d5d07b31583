"""Weights in the memory of other tensors, found by the addresses of their elements."""

from __future__ import annotations

import itertools
from typing import Dict, List, Set, Tuple

import pytest
import torch
from torch import nn

from ignite_ipu.errors import OptimizerError
from ignite_ipu.optimizers.shared_memory import refuse_shared_memory, weights_in_shared_memory


def slices() -> Dict[str, torch.Tensor]:
    """Return parts of two memories: some of them touch, some overlap, one has no elements."""
    first, second = torch.zeros(12), torch.zeros(4, 4)
    return {
        "start": first[:4],
        "next": first[4:8],
        "across": first[6:10],
        "end": first[10:],
        "none": first[3:3],
        "row": second[1],
        "turned": second[:2].t(),
        "rest": second[2:],
    }


def bytes_of(tensor: torch.Tensor) -> Set[int]:
    places: List[int] = [tensor.data_ptr()] if tensor.numel() else []
    for size, stride in zip(tensor.shape, tensor.stride()):
        places = [place + number * stride * tensor.element_size() for place in places for number in range(size)]
    return {place + byte for place in places for byte in range(tensor.element_size())}


@pytest.mark.parametrize("trained", slices())
def test_a_trained_weight_that_shares_memory_is_found(trained: str) -> None:
    named = slices()
    others = [name for name, each in named.items() if name != trained and bytes_of(each) & bytes_of(named[trained])]
    found = list(weights_in_shared_memory(named.items(), {id(named[trained])}))
    assert {pair[0] for pair in found} == ({trained} if others else set())
    assert {pair[1] for pair in found} <= set(others)


def test_every_order_of_the_names_finds_the_pair() -> None:
    memory = torch.zeros(9)
    named: List[Tuple[str, torch.Tensor]] = [("long", memory), ("short", memory[1:2]), ("late", memory[7:])]
    for order in itertools.permutations(named):
        pairs = list(weights_in_shared_memory(order, {id(named[2][1])}))
        assert pairs == [("late", "long")]


def test_tied_and_lazy_parameters_share_nothing() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.LazyLinear(2), nn.LazyLinear(2))
    model[1].weight = model[0].weight
    refuse_shared_memory(model)
    model.append(nn.Linear(3, 3, device="meta"))
    model.append(nn.Linear(3, 3, device="meta"))
    refuse_shared_memory(model)
    model[1].bias.data = model[0].bias.data
    with pytest.raises(OptimizerError, match=r"1\.bias has memory in common with 0\.bias, .*clone"):
        refuse_shared_memory(model)
    refuse_shared_memory(model[:2].requires_grad_(False))
