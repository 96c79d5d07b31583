import os

import torch
from torch import nn

from imaging.utils.optim import build_optimizer


class Trainer:
    """Trains and evaluates one model by a configuration."""

    def __init__(self, model, config):
        self.config = config
        self.device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
        self.model = model.to(self.device)
        self.criterion = nn.CrossEntropyLoss().to(self.device)
        self.optimizer = build_optimizer(self.model.parameters(), config["optimizer"])
        self.scheduler = torch.optim.lr_scheduler.StepLR(
            self.optimizer, config["schedule"]["step"], config["schedule"]["gamma"]
        )
        self.scaler = torch.cuda.amp.GradScaler(enabled=config["amp"])
        self.best = 0.0

    def train_epoch(self, loader):
        self.model.train()
        losses = []
        for images, labels in loader:
            images = images.to(self.device, non_blocking=True)
            labels = labels.to(self.device, non_blocking=True)
            self.optimizer.zero_grad(set_to_none=True)
            with torch.cuda.amp.autocast(enabled=self.config["amp"]):
                loss = self.criterion(self.model(images), labels)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            losses.append(loss.item())
        self.scheduler.step()
        return losses

    @torch.no_grad()
    def evaluate(self, loader):
        self.model.eval()
        right = total = 0
        for images, labels in loader:
            predicted = self.model(images.to(self.device)).argmax(dim=1).cpu()
            right += (predicted == labels).sum().item()
            total += len(labels)
        return right / total

    def save(self, epoch, accuracy):
        if accuracy >= self.best:
            self.best = accuracy
            os.makedirs(self.config["output"], exist_ok=True)
            state = {"epoch": epoch, "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
            torch.save(state, os.path.join(self.config["output"], "best.pth"))
