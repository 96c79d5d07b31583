"""Text classification over averaged embeddings, with a collate function that pads."""

import json

import torch
from torch import nn
from torch.utils.data import DataLoader

WORDS, CLASSES, LENGTH = 60, 4, 10


class TextModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 16)
        self.fc = nn.Linear(16, CLASSES)

    def forward(self, text, mask):
        embedded = self.embedding(text) * mask.unsqueeze(-1)
        return self.fc(embedded.sum(1) / mask.sum(1, keepdim=True))


def collate_batch(batch):
    text = torch.zeros(len(batch), LENGTH, dtype=torch.long)
    mask = torch.zeros(len(batch), LENGTH)
    for row, (words, _) in enumerate(batch):
        text[row, : len(words)] = words
        mask[row, : len(words)] = 1.0
    return text, mask, torch.tensor([label for _, label in batch])


def make_data(count):
    data = []
    for _ in range(count):
        label = int(torch.randint(CLASSES, ()))
        length = int(torch.randint(3, LENGTH + 1, ()))
        data.append((torch.randint(WORDS // CLASSES, (length,)) * CLASSES + label, label))
    return data


torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
train_dataloader = DataLoader(make_data(640), batch_size=32, shuffle=True, collate_fn=collate_batch)
valid_dataloader = DataLoader(make_data(100), batch_size=32, collate_fn=collate_batch)
model = TextModel().to(device)
criterion = torch.nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=2.0)


def train(dataloader):
    model.train()
    for text, mask, label in dataloader:
        text, mask, label = text.to(device), mask.to(device), label.to(device)
        optimizer.zero_grad()
        predicted_label = model(text, mask)
        loss = criterion(predicted_label, label)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()


def evaluate(dataloader):
    model.eval()
    total_acc, total_count = 0, 0
    with torch.no_grad():
        for text, mask, label in dataloader:
            text, mask, label = text.to(device), mask.to(device), label.to(device)
            predicted_label = model(text, mask)
            total_acc += (predicted_label.argmax(1) == label).sum().item()
            total_count += label.size(0)
    return total_acc / total_count


for epoch in range(4):
    train(train_dataloader)
    accuracy = evaluate(valid_dataloader)
print("RESULT", json.dumps({"accuracy": accuracy}))
