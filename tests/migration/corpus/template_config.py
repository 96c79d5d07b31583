"""A project template: classes named in a configuration, a base trainer with checkpoints and a tracker of metrics."""

import json
from abc import abstractmethod
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

CONFIG = {
    "name": "Digits",
    "n_gpu": 1,
    "arch": {"type": "DigitsModel", "args": {"num_classes": 10}},
    "data_loader": {"type": "digits_loader", "args": {"batch_size": 64, "shuffle": True}},
    "optimizer": {"type": "Adam", "args": {"lr": 0.003, "weight_decay": 0, "amsgrad": False}},
    "loss": "nll_loss",
    "metrics": ["accuracy", "top_k_acc"],
    "lr_scheduler": {"type": "StepLR", "args": {"step_size": 1, "gamma": 0.5}},
    "trainer": {"epochs": 3, "save_period": 1, "monitor": "min val_loss", "early_stop": 10},
}
SEED = 123
torch.manual_seed(SEED)
torch.backends.cudnn.deterministic = True
torch.backends.cudnn.benchmark = False
np.random.seed(SEED)


def nll_loss(output, target):
    return F.nll_loss(output, target)


def accuracy(output, target):
    with torch.no_grad():
        pred = torch.argmax(output, dim=1)
        assert pred.shape[0] == len(target)
        correct = 0
        correct += torch.sum(pred == target).item()
    return correct / len(target)


def top_k_acc(output, target, k=3):
    with torch.no_grad():
        pred = torch.topk(output, k, dim=1)[1]
        assert pred.shape[0] == len(target)
        correct = 0
        for i in range(k):
            correct += torch.sum(pred[:, i] == target).item()
    return correct / len(target)


def digits_loader(batch_size, shuffle):
    digits = load_digits()
    images = torch.tensor(digits.images[:768], dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target[:768])
    valid = DataLoader(TensorDataset(images[640:], labels[640:]), batch_size=batch_size)
    return DataLoader(TensorDataset(images[:640], labels[:640]), batch_size=batch_size, shuffle=shuffle), valid


class BaseModel(nn.Module):
    @abstractmethod
    def forward(self, *inputs):
        raise NotImplementedError

    def __str__(self):
        params = sum([np.prod(p.size()) for p in filter(lambda p: p.requires_grad, self.parameters())])
        return super().__str__() + "\nTrainable parameters: {}".format(params)


class DigitsModel(BaseModel):
    def __init__(self, num_classes=10):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, kernel_size=3)
        self.conv2_drop = nn.Dropout2d(p=0.0)
        self.fc1 = nn.Linear(54, 32)
        self.fc2 = nn.Linear(32, num_classes)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv2_drop(self.conv1(x)), 2))
        x = x.view(-1, 54)
        x = F.relu(self.fc1(x))
        x = F.dropout(x, p=0.0, training=self.training)
        return F.log_softmax(self.fc2(x), dim=1)


class MetricTracker:
    def __init__(self, *keys):
        self._data = {key: [0.0, 0] for key in keys}

    def reset(self):
        for entry in self._data.values():
            entry[:] = [0.0, 0]

    def update(self, key, value, n=1):
        self._data[key][0] += value * n
        self._data[key][1] += n

    def result(self):
        return {key: total / counts for key, (total, counts) in self._data.items()}


class BaseTrainer:
    def __init__(self, model, criterion, metric_ftns, optimizer, config, checkpoint_dir):
        self.config, self.model, self.criterion = config, model, criterion
        self.metric_ftns, self.optimizer = metric_ftns, optimizer
        cfg_trainer = config["trainer"]
        self.epochs, self.save_period = cfg_trainer["epochs"], cfg_trainer["save_period"]
        self.mnt_mode, self.mnt_metric = cfg_trainer["monitor"].split()
        self.mnt_best = np.inf
        self.start_epoch, self.checkpoint_dir, self.logs = 1, Path(checkpoint_dir), []

    @abstractmethod
    def _train_epoch(self, epoch):
        raise NotImplementedError

    def train(self):
        for epoch in range(self.start_epoch, self.epochs + 1):
            log = {"epoch": epoch, **self._train_epoch(epoch)}
            self.logs.append(log)
            best = log[self.mnt_metric] <= self.mnt_best
            if best:
                self.mnt_best = log[self.mnt_metric]
            if epoch % self.save_period == 0:
                self._save_checkpoint(epoch, save_best=best)

    def _save_checkpoint(self, epoch, save_best=False):
        state = {
            "arch": type(self.model).__name__,
            "epoch": epoch,
            "state_dict": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "monitor_best": self.mnt_best,
            "config": self.config,
        }
        torch.save(state, str(self.checkpoint_dir / "checkpoint-epoch{}.pth".format(epoch)))
        if save_best:
            torch.save(state, str(self.checkpoint_dir / "model_best.pth"))


class Trainer(BaseTrainer):
    def __init__(self, model, criterion, metric_ftns, optimizer, config, checkpoint_dir, device, loaders, lr_scheduler):
        super().__init__(model, criterion, metric_ftns, optimizer, config, checkpoint_dir)
        self.device, self.lr_scheduler = device, lr_scheduler
        self.data_loader, self.valid_data_loader = loaders
        self.len_epoch, self.log_step = len(self.data_loader), 5
        self.train_metrics = MetricTracker("loss", *[m.__name__ for m in self.metric_ftns])
        self.valid_metrics = MetricTracker("loss", *[m.__name__ for m in self.metric_ftns])
        self.losses = []

    def _train_epoch(self, epoch):
        self.model.train()
        self.train_metrics.reset()
        for batch_idx, (data, target) in enumerate(self.data_loader):
            data, target = data.to(self.device), target.to(self.device)
            self.optimizer.zero_grad()
            output = self.model(data)
            loss = self.criterion(output, target)
            loss.backward()
            self.optimizer.step()
            self.train_metrics.update("loss", loss.item())
            self.losses.append(loss.item())
            for met in self.metric_ftns:
                self.train_metrics.update(met.__name__, met(output, target))
            if batch_idx == self.len_epoch:
                break
        log = self.train_metrics.result()
        log.update(**{"val_" + k: v for k, v in self._valid_epoch().items()})
        if self.lr_scheduler is not None:
            self.lr_scheduler.step()
        return log

    def _valid_epoch(self):
        self.model.eval()
        self.valid_metrics.reset()
        with torch.no_grad():
            for data, target in self.valid_data_loader:
                data, target = data.to(self.device), target.to(self.device)
                output = self.model(data)
                self.valid_metrics.update("loss", self.criterion(output, target).item())
                for met in self.metric_ftns:
                    self.valid_metrics.update(met.__name__, met(output, target))
        return self.valid_metrics.result()


def init_obj(config, name, module, *args):
    return getattr(module, config[name]["type"])(*args, **config[name]["args"])


def prepare_device(n_gpu_use):
    n_gpu = torch.cuda.device_count()
    if n_gpu_use > 0 and n_gpu == 0:
        print("Warning: There's no GPU available on this machine, training will be performed on CPU.")
        n_gpu_use = 0
    device = torch.device("cuda:0" if n_gpu_use > 0 else "cpu")
    return device, list(range(n_gpu_use))


def main(config, folder):
    lookup = globals().__getitem__
    loaders = lookup(config["data_loader"]["type"])(**config["data_loader"]["args"])
    model = lookup(config["arch"]["type"])(**config["arch"]["args"])
    device, device_ids = prepare_device(config["n_gpu"])
    model = model.to(device)
    if len(device_ids) > 1:
        model = torch.nn.DataParallel(model, device_ids=device_ids)
    criterion = lookup(config["loss"])
    metrics = [lookup(met) for met in config["metrics"]]
    trainable_params = filter(lambda p: p.requires_grad, model.parameters())
    optimizer = init_obj(config, "optimizer", torch.optim, trainable_params)
    lr_scheduler = init_obj(config, "lr_scheduler", torch.optim.lr_scheduler, optimizer)
    trainer = Trainer(model, criterion, metrics, optimizer, config, folder, device, loaders, lr_scheduler)
    trainer.train()
    return trainer


with TemporaryDirectory() as folder:
    trainer = main(CONFIG, folder)
    best = torch.load(Path(folder) / "model_best.pth", weights_only=False)
print("RESULT", json.dumps({"losses": trainer.losses[:20], "logs": trainer.logs, "best": best["epoch"]}))
