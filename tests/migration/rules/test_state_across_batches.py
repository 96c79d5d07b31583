"""Values that a model returns and gets back are reported."""

from __future__ import annotations

RULE = "state-across-batches"


def test_hidden_state(lines):
    """In training and in generation."""
    code = """
        import torch
        from torch import nn
        model = nn.Linear(4, 2)
        criterion = nn.CrossEntropyLoss()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            out, hidden = model(x, hidden)
            loss = criterion(out, y)
            loss.backward()
            optimizer.step()
        for i in range(3):
            word, state = model(word, state)
    """
    assert lines(RULE, code) == [9, 14]


def test_layers_one_after_the_other(lines):
    """A loop over the layers of a model is one forward."""
    code = """
        for layer in layers:
            layer.eval()
            x = layer(x)
    """
    assert lines(RULE, code) == []


def test_fresh_state(lines):
    """A state made anew for each batch is an input like any other."""
    code = """
        import torch
        from torch import nn
        model = nn.Linear(4, 2)
        criterion = nn.CrossEntropyLoss()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            hidden = torch.zeros(4)
            out, hidden = model(x, hidden)
            loss = criterion(out, y)
            loss.backward()
            optimizer.step()
    """
    assert lines(RULE, code) == []


def test_loops_within_a_batch(lines):
    """The steps of a decoder begin anew with each batch; a hidden state that an epoch begins with goes on."""
    code = """
        import torch
        from torch import nn
        encoder, decoder = nn.Sequential(nn.GRU(4, 4)), nn.Sequential(nn.GRU(4, 4))
        optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.1)
        for x, y in loader:
            optimizer.zero_grad()
            loss = 0
            _, h = encoder(x)
            for t in range(5):
                output, h = decoder(y[t], h)
                loss = loss + nn.functional.mse_loss(output, y[t])
            loss.backward()
            optimizer.step()
    """
    assert lines(RULE, code) == []
    carried = """
        import torch
        from torch import nn
        model = nn.Sequential(nn.GRU(4, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for epoch in range(3):
            h = torch.zeros(1, 8, 4)
            for x, y in loader:
                optimizer.zero_grad()
                output, h = model(x, h.detach())
                loss = nn.functional.mse_loss(output, y)
                loss.backward()
                optimizer.step()
    """
    assert lines(RULE, carried) == [9]
