"""The run that is broken: small, but with everything that could be lost."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

import torch
from ignite.engine import Events
from ignite.handlers import Checkpoint
from ignite.metrics import Accuracy, Loss
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ignite_ipu.emulator  # noqa: F401  # once here, not in every child
from ignite_ipu import create_ipu_evaluator, create_ipu_trainer
from ignite_ipu.checkpoints import CheckpointSaver, resume_from

Note = Callable[[str], None]

CALLS_PER_EPOCH = 5
EVALUATION_CALLS = 2
RESULT = "result.json"


class Run:
    """A trainer with shuffled data, dropout, batch statistics, Adam's moments, a schedule, and an evaluation per epoch.

    Attributes:
        log: Losses, learning rates and metrics, in the order they came.
    """

    def __init__(self, note: Optional[Note] = None, optimizer: str = "Adam") -> None:
        torch.manual_seed(0)
        x = torch.randn(43, 6)
        data = TensorDataset(x, (x[:, 0] + x[:, 1] > 0).long())
        self.note = note or (lambda phase: None)
        self.model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 2))
        self.optimizer = {
            "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
            "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
            "SGD": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
            "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
        }[optimizer](self.model.parameters())
        loss = nn.CrossEntropyLoss()
        self.trainer = create_ipu_trainer(self.model, self.optimizer, loss, device_iterations=2, seed=3)
        self.evaluator = create_ipu_evaluator(self.model, {"accuracy": Accuracy(), "loss": Loss(loss)})
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.97)
        self.loader = DataLoader(data, batch_size=4, shuffle=True)
        self.validation = DataLoader(data, batch_size=15)
        self.log: List[Any] = []
        self.to_save = {
            "trainer": self.trainer,
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
        }
        self.trainer.add_event_handler(Events.ITERATION_STARTED, lambda: self.note("train"))
        self.trainer.add_event_handler(Events.ITERATION_COMPLETED, self._iteration)
        self.trainer.add_event_handler(Events.EPOCH_COMPLETED, self._evaluate)

    def _iteration(self) -> None:
        self.log.append([self.trainer.state.output, self.optimizer.param_groups[0]["lr"]])
        self.scheduler.step()

    def _evaluate(self) -> None:
        self.note("evaluate")
        self.log.append(dict(self.evaluator.run(self.validation).metrics))
        self.note("train")

    def checkpoint(self, folder: Path, every: int = 2) -> None:
        """Write checkpoints in the middle of epochs and at their ends."""
        saver = CheckpointSaver(folder)

        def save(content: Any, name: str, metadata: Any = None) -> None:
            self.note("checkpoint")
            saver(content, name, metadata)
            self.note("train")

        handler = Checkpoint(self.to_save, save, n_saved=None)
        self.trainer.add_event_handler(Events.ITERATION_COMPLETED(every=every), handler)
        self.trainer.add_event_handler(Events.EPOCH_COMPLETED, handler)

    def resume(self, folder: Path) -> Optional[Path]:
        return resume_from(folder, self.to_save)

    def train(self, epochs: int = 2) -> None:
        self.note("start")
        self.trainer.run(self.loader, max_epochs=epochs)

    def result(self) -> Dict[str, Any]:
        """Return digests of all that the run leaves: equal digests mean equal bits."""
        optimizer = self.optimizer.state_dict()
        tensors = {f"model {name}": value for name, value in self.model.state_dict().items()}
        for number, slots in optimizer["state"].items():
            tensors.update({f"optimizer {number} {name}": value for name, value in slots.items()})
        return {
            "tensors": {name: digest(value) for name, value in tensors.items()},
            "groups": repr(optimizer["param_groups"]),
            "random": hashlib.sha256(bytes(repr(self.trainer.ipu.random_state()), "ascii")).hexdigest(),
            "iteration": self.trainer.state.iteration,
            "evaluation": dict(self.evaluator.run(self.validation).metrics),
        }


def digest(value: torch.Tensor) -> str:
    content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8) if value.dim() else value.reshape(1)
    return hashlib.sha256(repr(tuple(value.shape)).encode() + content.numpy().tobytes()).hexdigest()[:16]


def write_result(folder: Path, result: Dict[str, Any]) -> None:
    temporary = folder / f"{RESULT}.part"
    temporary.write_text(json.dumps(result))
    os.replace(temporary, folder / RESULT)


def read_result(folder: Path) -> Dict[str, Any]:
    found: Dict[str, Any] = json.loads((folder / RESULT).read_text())
    return found
