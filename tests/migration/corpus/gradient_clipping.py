"""A word-level model with gradients clipped by norm between backward and step."""

import json

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
VOCABULARY, LENGTH = 40, 12


class NextWord(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.gru = nn.GRU(16, 32, batch_first=True)
        self.head = nn.Linear(32, VOCABULARY)

    def forward(self, words):
        states, _ = self.gru(self.embedding(words))
        return self.head(states[:, -1])


starts = torch.randint(VOCABULARY, (512, 1))
steps = torch.randint(1, 4, (512, 1))
sentences = (starts + steps * torch.arange(LENGTH + 1)) % VOCABULARY
loader = DataLoader(TensorDataset(sentences[:, :-1], sentences[:, -1]), batch_size=32, shuffle=True)

device = torch.device("cuda:0") if torch.cuda.is_available() else torch.device("cpu")
model = NextWord().to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
CLIP = 0.25

model.train()
for epoch in range(3):
    total_loss = 0.0
    for words, following in loader:
        words, following = words.to(device), following.to(device)
        model.zero_grad()
        output = model(words)
        loss = criterion(output, following)
        loss.backward()
        # Clipping keeps recurrent gradients from exploding.
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        total_loss += loss.item()

print("RESULT", json.dumps({"loss": total_loss / len(loader)}))
