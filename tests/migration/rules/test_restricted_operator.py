"""Arguments that PopTorch's operators do not take are reported where they are given."""

from __future__ import annotations

RULE = "restricted-operator"


def test_layers(lines):
    """Recurrent layers, embeddings, normalisations, pooling, class weights."""
    code = """
        from torch import nn
        nn.LSTM(4, 8, 2)
        nn.GRU(4, 8, bidirectional=True)
        nn.Embedding(10, 4, padding_idx=0)
        nn.BatchNorm2d(4, affine=False)
        nn.MaxPool2d(2, return_indices=True)
        nn.CrossEntropyLoss(weight=w)
        nn.Upsample(scale_factor=2, mode="bilinear")
        nn.LayerNorm(4, elementwise_affine=False)
    """
    assert lines(RULE, code) == [2, 3, 4, 5, 6, 7, 8, 9]


def test_defaults_and_unknown_values(lines):
    """Values that are not literals may be fine."""
    code = """
        from torch import nn
        nn.LSTM(4, 8, 1)
        nn.LSTM(4, 8, num_layers=layers)
        nn.Embedding(10, 4, padding_idx=None)
        nn.CrossEntropyLoss(weight=None)
        nn.Upsample(scale_factor=2, mode="nearest")
    """
    assert lines(RULE, code) == []
