"""Ignite's Parallel launches training() with auto_dataloader, auto_model and auto_optim."""

import json

import ignite.distributed as idist
import torch
from ignite.engine import create_supervised_trainer
from ignite.utils import manual_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset


def training(local_rank, config):
    manual_seed(config["seed"] + idist.get_rank())
    device = idist.device()
    digits = load_digits()
    features = torch.tensor(digits.data, dtype=torch.float32) / 16.0
    dataset = TensorDataset(features[:1280], torch.tensor(digits.target)[:1280])
    train_loader = idist.auto_dataloader(dataset, batch_size=config["batch_size"], shuffle=True, drop_last=True)

    model = idist.auto_model(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)))
    optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=config["learning_rate"], momentum=0.9))
    criterion = nn.CrossEntropyLoss().to(idist.device())

    trainer = create_supervised_trainer(model, optimizer, criterion, device=device, non_blocking=True)
    trainer.run(train_loader, max_epochs=config["max_epochs"])
    if idist.get_rank() == 0:
        print("RESULT", json.dumps({"loss": trainer.state.output, "processes": idist.get_world_size()}))


if __name__ == "__main__":
    backend = "nccl" if torch.cuda.is_available() else None
    config = {"seed": 0, "batch_size": 64, "learning_rate": 0.1, "max_epochs": 2}
    with idist.Parallel(backend=backend) as parallel:
        parallel.run(training, config)
