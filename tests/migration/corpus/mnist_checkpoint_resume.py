"""Ignite's Checkpoint saves model, optimizer and trainer; a second trainer resumes from the file."""

import json
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from ignite.engine import Events, create_supervised_trainer
from ignite.handlers import Checkpoint, DiskSaver, global_step_from_engine
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"


def load_digits_data():
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16.0
    y = torch.tensor(digits.target)
    return TensorDataset(x[:1280], y[:1280]), TensorDataset(x[1280:], y[1280:])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, kernel_size=3, padding=1)
        self.fc1 = nn.Linear(16 * 4 * 4, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        return F.log_softmax(self.fc2(x), dim=-1)


def make_trainer():
    model = Net().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    trainer = create_supervised_trainer(model, optimizer, nn.NLLLoss(), device=device)
    return model, optimizer, trainer


def main(directory):
    torch.manual_seed(0)
    train_set, _ = load_digits_data()
    loader = DataLoader(train_set, batch_size=64)

    model, optimizer, trainer = make_trainer()
    to_save = {"model": model, "optimizer": optimizer, "trainer": trainer}
    handler = Checkpoint(
        to_save, DiskSaver(directory, create_dir=True), n_saved=2, global_step_transform=global_step_from_engine(trainer)
    )
    trainer.add_event_handler(Events.EPOCH_COMPLETED, handler)
    trainer.run(loader, max_epochs=1)

    # A new process would start here.
    model, optimizer, trainer = make_trainer()
    path = Path(directory) / handler.last_checkpoint
    checkpoint = torch.load(path, map_location=device)
    Checkpoint.load_objects(to_load={"model": model, "optimizer": optimizer, "trainer": trainer}, checkpoint=checkpoint)
    trainer.run(loader, max_epochs=2)
    return trainer, model


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        trainer, model = main(folder)
    total = sum(parameter.abs().sum().item() for parameter in model.parameters())
    print("RESULT", json.dumps({"iteration": trainer.state.iteration, "loss": trainer.state.output, "weights": total}))
