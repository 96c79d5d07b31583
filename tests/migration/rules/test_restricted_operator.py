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
        nn.BatchNorm2d(4, momentum=None)
        nn.MaxPool2d(2, return_indices=True)
        nn.CrossEntropyLoss(weight=w)
        nn.Upsample(scale_factor=2, mode="linear")
        nn.LayerNorm(4, bias=False)
        nn.Embedding(10, 4, max_norm=1.0)
    """
    assert lines(RULE, code) == [2, 3, 4, 5, 6, 7, 8, 9, 10]


def test_what_compiles(lines):
    """Though PopTorch's guide says otherwise."""
    code = """
        from torch import nn
        nn.BatchNorm2d(4, affine=False)
        nn.LayerNorm(4, elementwise_affine=False)
        nn.Embedding(10, 4, padding_idx=0)
        nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
    """
    assert lines(RULE, code) == []


def test_what_is_doubted_is_a_note(findings):
    """Doubts about a loss are left out: our engines refuse it."""
    code = """
        from torch import nn
        nn.GRU(4, 8, bidirectional=True)
        nn.LSTM(4, 8, bidirectional=True)
        nn.CrossEntropyLoss(label_smoothing=0.1)
    """
    assert [found.severity.value for found in findings(RULE, code)] == ["note", "error", "error"]


def test_only_in_traced_code(lines):
    """Layers and losses are found where they are made, other operators where they are traced."""
    code = """
        import torch
        from torch import nn

        class Net(nn.Module):
            def forward(self, x):
                return x.topk(2, sorted=False).values + torch.argsort(x, stable=True)[:2]

        torch.argsort(y, stable=True)
    """
    assert lines(RULE, code) == [6, 6]


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


def test_values_behind_names(findings):
    """A default, an attribute that `__init__` sets, a variable, and arguments of callers in the file."""
    code = """
        from torch import nn

        class Net(nn.Module):
            def __init__(self, layers=2, weight=None, other=1, free=1):
                super().__init__()
                self.layers, self.weight = layers, weight
                free = make(free)
                nn.LSTM(4, 8, layers)
                nn.LSTM(4, 8, num_layers=self.layers)
                nn.LSTM(4, 8, other)
                nn.LSTM(4, 8, free)
                nn.CrossEntropyLoss(weight=self.weight)

        class Shallow(nn.Module):
            def __init__(self, layers=2):
                super().__init__()
                self.rnn = nn.LSTM(4, 8, layers)

        Shallow(layers=1)
        Net(other=3)
        depth = 3
        nn.LSTM(4, 8, depth)
    """
    assert [found.line for found in findings(RULE, code)] == [8, 9, 10, 22]


def test_losses(lines):
    """Class weights and label smoothing, and Huber's loss is another's name; a metric may be anything."""
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


def test_a_layer_is_reported_where_it_is_called(findings):
    """As a run does: in forward, or where the program calls it by its name; else where it is made."""
    code = """
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.table = nn.Embedding(10, 4, max_norm=1.0)
            def forward(self, x):
                return self.table(x)

        criterion = nn.CTCLoss(reduction="none")
        def train(output):
            return criterion(output, y, lengths, lengths).mean()
        nn.MaxPool2d(2, return_indices=True)
    """
    assert [(found.line, found.message.split()[0]) for found in findings(RULE, code)] == [
        (8, "Net.forward"),
        (12, "train"),
        (13, "This"),
    ]


def test_arguments_that_a_model_hands_to_its_parts(lines):
    """A model that only passes a tensor on does not show that it is one; the part does."""
    code = """
        import torch
        from torch import nn

        class Tower(nn.Module):
            def __init__(self):
                super().__init__()
                self.bag = nn.EmbeddingBag(10, 4)
            def forward(self, ids, starts):
                return self.bag(ids, starts)

        class Towers(nn.Module):
            def __init__(self):
                super().__init__()
                self.user, self.item = Tower(), Tower()
            def forward(self, users, user_starts, items, item_starts):
                return self.user(users, user_starts) * self.item(starts=item_starts, ids=items)
    """
    assert lines(RULE, code) == [9]
