"""Which modules are layers."""

from __future__ import annotations

import pytest
from torch import nn

from ignite_ipu.pipeline import PlanError, select_layers


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(4), nn.Sequential(nn.Linear(4, 4), nn.GELU())


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.ModuleList(Block() for _ in range(3))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.encoder, self.head = nn.Embedding(5, 4), Encoder(), nn.Linear(4, 5)


class WithLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.model, self.loss = Model(), nn.CrossEntropyLoss()


BLOCKS = ["embed", "encoder.layer.0", "encoder.layer.1", "encoder.layer.2", "head"]


def test_blocks_open_containers_and_keep_their_items():
    assert select_layers(Model()) == BLOCKS
    assert select_layers(nn.Sequential(nn.Linear(1, 1), nn.Sequential(Block(), Block()))) == ["0", "1.0", "1.1"]


def test_blocks_look_through_a_wrapper_with_a_loss():
    assert select_layers(WithLoss()) == [*(f"model.{name}" for name in BLOCKS), "loss"]


def test_leaves_and_depths():
    assert select_layers(Block(), "leaves") == ["norm", "mix.0", "mix.1"]
    assert select_layers(Model(), 1) == ["embed", "encoder", "head"]
    assert select_layers(Model(), 2) == ["embed", "encoder.layer", "head"]
    assert select_layers(nn.Linear(1, 1)) == [""]


def test_names_are_checked():
    assert select_layers(Model(), ["encoder.layer.1"]) == ["encoder.layer.1"]
    with pytest.raises(PlanError, match=r"no module named 'encoder\.layer\.3'"):
        select_layers(Model(), ["encoder.layer.3"])
    with pytest.raises(PlanError, match=r"Linear has no module named 'x'\. It has no modules inside\."):
        select_layers(nn.Linear(1, 1), ["x"])
    with pytest.raises(PlanError, match="'head' is listed twice"):
        select_layers(Model(), ["head", "head"])


@pytest.mark.parametrize("granularity", ["fine", 0])
def test_unknown_granularity_is_refused(granularity):
    with pytest.raises(PlanError, match=f"granularity is {granularity!r}"):
        select_layers(Model(), granularity)


def test_a_list_of_names_may_have_ranges():
    assert select_layers(Model(), ["embed", "encoder.layer.0-2", "head"]) == BLOCKS
    with pytest.raises(PlanError, match=r"no layers 'encoder.layer.1-7'\. Did you mean 'encoder.layer.1'"):
        select_layers(Model(), ["encoder.layer.1-7"])
