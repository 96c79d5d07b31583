"""Arguments that PopTorch's operators do not take are reported where they are given."""

from __future__ import annotations

RULE = "restricted-operator"


def test_layers(lines):
    """Recurrent layers, embeddings, normalisations, pooling, class weights."""
    code = """
        from torch import nn
        nn.LSTM(4, 8, 2)
        nn.GRU(4, 8, bidirectional=True)
        nn.EmbeddingBag(10, 4, padding_idx=0)
        nn.BatchNorm2d(4, affine=False)
        nn.MaxPool2d(2, return_indices=True)
        nn.CrossEntropyLoss(weight=w)
        nn.Upsample(scale_factor=2, mode="bilinear")
        nn.LayerNorm(4, elementwise_affine=False)
        nn.Embedding(10, 4, max_norm=1.0)
    """
    assert lines(RULE, code) == [2, 3, 4, 5, 6, 7, 8, 9, 10]


def test_positional_arguments(lines):
    """They are found where PyTorch has them."""
    code = """
        from torch import nn
        from torch.nn import functional as F
        nn.LSTM(4, 8, 1, False)
        nn.GRU(4, 8, 1, True, False, 0.0, True)
        nn.RNN(4, 8, 1, "tanh", False)
        F.ctc_loss(output, y, lengths, target_lengths, 0, "none")
        nn.RNN(4, 8, 1, "tanh", True)
    """
    assert lines(RULE, code) == [3, 4, 5, 6]


def test_an_rnn_without_a_positional_nonlinearity(lines):
    """Before PyTorch 2.1 a bias came in its place."""
    code = """
        from torch import nn
        nn.RNN(4, 8, 1, False)
        nn.RNN(4, 8, 1, True, False)
        nn.RNN(4, 8, 1, True, False, 0.5)
        nn.RNN(4, 8, 1, True, False, 0.0, True)
    """
    assert lines(RULE, code) == [2, 4, 5]


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


def test_losses(lines):
    """Label smoothing is not read, and Huber's loss is another's name; a metric may be anything."""
    code = """
        import torch
        from torch import nn
        from torch.nn import functional as F
        nn.CrossEntropyLoss(label_smoothing=0.1)
        F.cross_entropy(output, y, label_smoothing=0.1)
        nn.HuberLoss(delta=2.0)
        F.huber_loss(output, y)
        nn.CrossEntropyLoss(label_smoothing=0.0)
        with torch.no_grad():
            error = F.huber_loss(output, y)
    """
    assert lines(RULE, code) == [4, 5, 6, 7]


def test_padding_of_embeddings(lines):
    """Our engines keep the row untrained; PopTorch by itself does not."""
    code = """
        import poptorch
        from torch import nn
        model = nn.Embedding(10, 4, padding_idx=0)
        executor = poptorch.WRAPPER(model)
    """
    assert lines(RULE, code) == []
    assert lines(RULE, code.replace("WRAPPER", "trainingModel")) == [3]
