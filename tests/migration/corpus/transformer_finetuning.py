"""A small transformer encoder fine-tuned in the manner of the sequence classification examples.

The lower layer is frozen, weight decay is left off biases and norms, and the rate decays linearly per batch.
"""

import json

import torch
from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

VOCABULARY, LENGTH, WIDTH = 50, 12, 32


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(torch.zeros(LENGTH, WIDTH))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, nhead=4, dim_feedforward=64, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, ids):
        hidden = self.words(ids) + self.positions
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden.mean(dim=1))


def parameter_groups(model, weight_decay):
    decayed = [p for n, p in model.named_parameters() if p.requires_grad and p.dim() > 1]
    others = [p for n, p in model.named_parameters() if p.requires_grad and p.dim() <= 1]
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]


def main():
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    ids = torch.randint(VOCABULARY, (512, LENGTH))
    labels = (ids < VOCABULARY // 2).float().mean(1).gt(0.5).long()
    loader = DataLoader(TensorDataset(ids, labels), batch_size=32, shuffle=True)

    model = Classifier().to(device)
    model.words.weight.requires_grad_(False)
    optimizer = AdamW(parameter_groups(model, 0.01), lr=5e-3, fused=False)
    num_training_steps = 3 * len(loader)
    lr_scheduler = LambdaLR(optimizer, lambda step: max(0.0, 1.0 - step / num_training_steps))
    loss_function = nn.CrossEntropyLoss()

    model.train()
    for epoch in range(3):
        for input_ids, targets in loader:
            input_ids, targets = input_ids.to(device), targets.to(device)
            logits = model(input_ids)
            loss = loss_function(logits, targets)
            loss.backward()
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()

    model.eval()
    with torch.no_grad():
        logits = model(ids.to(device))
    accuracy = (logits.argmax(-1).cpu() == labels).float().mean().item()
    print("RESULT", json.dumps({"loss": loss.item(), "accuracy": accuracy}))


if __name__ == "__main__":
    main()
