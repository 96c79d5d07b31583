"""The run that is broken: small, but with everything that could be lost."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Union

import torch
from ignite.engine import Events
from ignite.handlers import Checkpoint, EarlyStopping, EpochOutputStore, TerminateOnNan
from ignite.metrics import Accuracy, Average, ConfusionMatrix, Loss, RunningAverage
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ignite_ipu.emulator  # noqa: F401  # once here, not in every child
from ignite_ipu import create_ipu_evaluator, create_ipu_trainer
from ignite_ipu.checkpoints import CheckpointSaver, resume_from

Note = Callable[[str], None]

CALLS_PER_EPOCH = 5
EVALUATION_CALLS = 2
RESULT = "result.json"


class Best:
    """A user's handler with a memory: the best evaluation so far, and how often one was the best."""

    def __init__(self) -> None:
        self.loss, self.times = float("inf"), 0

    def __call__(self, engine: Any) -> None:
        if engine.state.metrics["loss"] < self.loss:
            self.loss, self.times = engine.state.metrics["loss"], self.times + 1

    def state_dict(self) -> Dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        vars(self).update(state)


class Run:
    """A trainer with shuffled data, dropout, batch statistics, Adam's moments, and an evaluation per epoch.

    Further a schedule for iterations and one for epochs, metrics of the training and of the evaluation, early stopping,
    a store of outputs, a counter in the state, and handlers that write into a buffer and into weights.

    Attributes:
        log: Losses, learning rates and metrics, in the order they came.
    """

    def __init__(
        self, note: Optional[Note] = None, optimizer: str = "Adam", patience: int = 3, share_ipus: bool = False
    ) -> None:
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
        self.trainer = create_ipu_trainer(
            self.model,
            self.optimizer,
            loss,
            device_iterations=2,
            seed=3,
            config={"share_ipus": share_ipus},
            output_transform=lambda x, y, y_pred, loss: (y_pred, y, loss.item()),
        )
        self.evaluator = create_ipu_evaluator(self.model, {"accuracy": Accuracy(), "loss": Loss(loss)})
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.97)
        self.epoch_scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.5)
        self.best = Best()
        self.loader = DataLoader(data, batch_size=4, shuffle=True)
        self.validation = DataLoader(data, batch_size=15)
        self.log: List[Any] = []
        # : Parts of the run's state beside trainer, model and optimizer.
        self.others = {"scheduler": self.scheduler, "epochs": self.epoch_scheduler, "best": self.best}
        self.to_save = {"trainer": self.trainer, "model": self.model, "optimizer": self.optimizer, **self.others}
        self._attach_handlers(patience)

    def _attach_handlers(self, patience: int) -> None:
        trainer = self.trainer
        trainer.add_event_handler(Events.ITERATION_STARTED, lambda: self.note("train"))
        Average(output_transform=lambda output: output[2]).attach(trainer, "mean loss")
        trainer.add_event_handler(Events.ITERATION_COMPLETED, self._iteration)
        Accuracy(output_transform=lambda output: output[:2]).attach(trainer, "accuracy")
        trainer.add_event_handler(Events.EPOCH_COMPLETED, self._evaluate)
        ConfusionMatrix(2, output_transform=lambda output: output[:2]).attach(trainer, "matrix")
        RunningAverage(output_transform=lambda output: output[2]).attach(trainer, "running")
        trainer.add_event_handler(Events.ITERATION_COMPLETED, TerminateOnNan(output_transform=lambda output: output[2]))
        EpochOutputStore(output_transform=lambda output: output[2]).attach(trainer, "losses")
        self.stopping = EarlyStopping(patience, lambda engine: -engine.state.metrics["loss"], trainer)
        self.others["stopping"] = self.to_save["stopping"] = self.stopping
        self.evaluator.add_event_handler(Events.COMPLETED, self.stopping)
        self.evaluator.add_event_handler(Events.COMPLETED, self.best)
        trainer.state_dict_user_keys.append("log_lines")
        trainer.state.log_lines = 0  # type: ignore[attr-defined]

    def _iteration(self) -> None:
        state = self.trainer.state
        running = state.metrics.get("running")
        self.log.append([state.output[2], running, self.optimizer.param_groups[0]["lr"]])
        state.log_lines += 1  # type: ignore[attr-defined]
        self.scheduler.step()
        if state.iteration % 4 == 0:
            self.model[1].running_mean.mul_(0.5)

    def _evaluate(self) -> None:
        self.note("evaluate")
        evaluated = dict(self.evaluator.run(self.validation).metrics)
        self.log.append([evaluated, self.trainer.state.metrics["mean loss"]])
        self.epoch_scheduler.step()
        with torch.no_grad():
            self.model[0].weight.clamp_(-0.3, 0.3)
        self.note("train")

    def checkpoint(self, folder: Path, every: int = 1, kept: Optional[int] = None) -> None:
        """Write checkpoints in the middle of epochs and at their ends; the handler remembers so many, or all."""
        saver = CheckpointSaver(folder)

        def save(content: Any, name: str, metadata: Any = None) -> None:
            self.note("checkpoint")
            saver(content, name, metadata)
            self.note("train")

        handler = Checkpoint(self.to_save, save, n_saved=kept)
        self.trainer.add_event_handler(Events.ITERATION_COMPLETED(every=every), handler)
        self.trainer.add_event_handler(Events.EPOCH_COMPLETED, handler)

    def look_at_weights(self) -> None:
        """Log a weight and a moment in the middle of each epoch, and give the IPUs back after the first."""

        def look(engine: Any) -> None:
            state = self.optimizer.state_dict()["state"][0]
            moments = {name: digest(value) for name, value in state.items() if isinstance(value, torch.Tensor)}
            self.log.append([self.model[0].weight.norm().item(), moments])

        self.trainer.add_event_handler(Events.ITERATION_COMPLETED(every=3), look)
        self.trainer.add_event_handler(Events.EPOCH_COMPLETED(once=1), self.trainer.ipu.release)

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
            "lines": self.trainer.state.log_lines,  # type: ignore[attr-defined]
            "handlers": repr({name: value.state_dict() for name, value in self.others.items()}),
            "training": repr(sorted(self.trainer.state.metrics.items())),
            "losses": repr(getattr(self.trainer.state, "losses", None)),
            "evaluation": dict(self.evaluator.run(self.validation).metrics),
        }


def digest(value: Union[torch.Tensor, int]) -> str:
    value = torch.as_tensor(value)  # RMSprop's step count is an integer in PyTorch 2.0
    content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8) if value.dim() else value.reshape(1)
    return hashlib.sha256(repr(tuple(value.shape)).encode() + content.numpy().tobytes()).hexdigest()[:16]


def write_result(folder: Path, result: Dict[str, Any]) -> None:
    temporary = folder / f"{RESULT}.part"
    temporary.write_text(json.dumps(result))
    os.replace(temporary, folder / RESULT)


def read_result(folder: Path) -> Dict[str, Any]:
    found: Dict[str, Any] = json.loads((folder / RESULT).read_text())
    return found
