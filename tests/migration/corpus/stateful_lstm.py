"""A language model whose hidden state is carried from one batch to the next."""

import json

import torch
from torch import nn


class RNNModel(nn.Module):
    def __init__(self, vocabulary=20, width=16):
        super().__init__()
        self.encoder = nn.Embedding(vocabulary, width)
        self.rnn = nn.GRU(width, width)
        self.decoder = nn.Linear(width, vocabulary)

    def forward(self, words, hidden):
        output, hidden = self.rnn(self.encoder(words), hidden)
        return self.decoder(output).flatten(0, 1), hidden


def repackage_hidden(h):
    """Detach a hidden state from its history."""
    return h.detach()


torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
text = (torch.arange(40 * 8) * 3 % 20).view(8, 40).t().contiguous().to(device)
model = RNNModel().to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

for epoch in range(3):
    model.train()
    hidden = torch.zeros(1, 8, 16, device=device)
    for start in range(0, 36, 6):
        data, targets = text[start : start + 6], text[start + 1 : start + 7].reshape(-1)
        hidden = repackage_hidden(hidden)
        optimizer.zero_grad()
        output, hidden = model(data, hidden)
        loss = criterion(output, targets)
        loss.backward()
        optimizer.step()

print("RESULT", json.dumps({"loss": loss.item()}))
