"""A model evaluated with many metrics, on training and test data."""

import json

import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Accuracy, ConfusionMatrix, Fbeta, Loss, Precision, Recall, TopKCategoricalAccuracy
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
digits = load_digits()
features = torch.tensor(digits.data, dtype=torch.float32) / 16.0
labels = torch.tensor(digits.target)
train_loader = DataLoader(TensorDataset(features[:1280], labels[:1280]), batch_size=64, shuffle=True)
train_eval_loader = DataLoader(TensorDataset(features[:1280], labels[:1280]), batch_size=100)
test_loader = DataLoader(TensorDataset(features[1280:], labels[1280:]), batch_size=100)

model = nn.Sequential(nn.Linear(64, 48), nn.LayerNorm(48), nn.GELU(), nn.Linear(48, 10)).to(device)
criterion = nn.CrossEntropyLoss(label_smoothing=0.0)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
trainer = create_supervised_trainer(model, optimizer, criterion, device=device)

precision, recall = Precision(average=False), Recall(average=False)
metrics = {
    "accuracy": Accuracy(),
    "top3": TopKCategoricalAccuracy(k=3),
    "loss": Loss(criterion),
    "f1": Fbeta(1.0, average=True, precision=precision, recall=recall),
    "confusion": ConfusionMatrix(num_classes=10),
    "macro_precision": precision.mean(),
}
evaluator = create_supervised_evaluator(model, metrics=metrics, device=device)
history = []


@trainer.on(Events.EPOCH_COMPLETED)
def evaluate(engine):
    for loader in (train_eval_loader, test_loader):
        state = evaluator.run(loader)
        history.append(state.metrics["accuracy"])


trainer.run(train_loader, max_epochs=3)
final = evaluator.state.metrics
numbers = {name: float(final[name]) for name in ("accuracy", "top3", "loss", "f1", "macro_precision")}
print("RESULT", json.dumps({**numbers, "counted": int(final["confusion"].sum()), "history": history}))
