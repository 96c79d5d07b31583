"""Functions that make Ignite's engines, in the manner of its templates, with autocast and a scaler by configuration."""

import json

import torch
from ignite.engine import Engine, Events
from ignite.metrics import Accuracy, Loss, RunningAverage
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def create_trainer(model, optimizer, criterion, config):
    scaler = torch.cuda.amp.GradScaler(enabled=config["with_amp"])

    def train_step(engine, batch):
        model.train()
        x, y = (part.to(config["device"]) for part in batch)
        with torch.autocast("cuda", enabled=config["with_amp"]):
            y_pred = model(x)
            loss = criterion(y_pred, y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return {"loss": loss.item(), "y_pred": y_pred, "y": y}

    trainer = Engine(train_step)
    RunningAverage(output_transform=lambda output: output["loss"]).attach(trainer, "loss")
    Accuracy(output_transform=lambda output: (output["y_pred"], output["y"])).attach(trainer, "accuracy")
    return trainer


def create_evaluator(model, metrics, config):
    @torch.no_grad()
    def evaluate_step(engine, batch):
        model.eval()
        return model(batch[0].to(config["device"])), batch[1].to(config["device"])

    evaluator = Engine(evaluate_step)
    for name, metric in metrics.items():
        metric.attach(evaluator, name)
    return evaluator


torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
config = {"device": device, "with_amp": False}
loader = DataLoader(TensorDataset(torch.randn(200, 8), torch.randint(3, (200,))), batch_size=32)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
criterion = nn.CrossEntropyLoss().to(device)
trainer = create_trainer(model, optimizer, criterion, config)
evaluator = create_evaluator(model, {"accuracy": Accuracy(), "loss": Loss(criterion)}, config)
history = []


@trainer.on(Events.EPOCH_COMPLETED)
def validate(engine):
    evaluator.run(loader)
    history.append([*engine.state.metrics.values(), *evaluator.state.metrics.values()])


trainer.run(loader, max_epochs=2)
print("RESULT", json.dumps({"history": history}))
