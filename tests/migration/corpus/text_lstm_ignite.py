"""Sequence classification with an LSTM under Ignite, with binary metrics."""

import json

import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Accuracy, Loss
from ignite.utils import manual_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class SentimentLSTM(nn.Module):
    def __init__(self, vocabulary, embedding_dim, hidden_dim):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding_dim)
        self.lstm = nn.LSTM(embedding_dim, hidden_dim, batch_first=True)
        self.fc = nn.Linear(hidden_dim, 1)

    def forward(self, x):
        output, (hidden, _) = self.lstm(self.embedding(x))
        return torch.sigmoid(self.fc(hidden[-1])).squeeze(1)


manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
sentences = torch.randint(20, (800, 8))
labels = (sentences.float().mean(1) > 9.5).float()
train_loader = DataLoader(TensorDataset(sentences[:640], labels[:640]), batch_size=32, shuffle=True)
val_loader = DataLoader(TensorDataset(sentences[640:], labels[640:]), batch_size=50)

model = SentimentLSTM(20, 8, 16).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
criterion = nn.BCELoss()


def thresholded_output_transform(output):
    y_pred, y = output
    return torch.round(y_pred), y


trainer = create_supervised_trainer(model, optimizer, criterion, device=device)
evaluator = create_supervised_evaluator(
    model, metrics={"acc": Accuracy(thresholded_output_transform), "loss": Loss(criterion)}, device=device
)
trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda engine: evaluator.run(val_loader))
trainer.run(train_loader, max_epochs=3)
print("RESULT", json.dumps(evaluator.state.metrics))
