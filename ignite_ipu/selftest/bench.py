"""Tools of a program: a small task, engines that are given back behind it, and plain PyTorch to compare with."""

from __future__ import annotations

import contextlib
import copy
from pathlib import Path
from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch
from torch import nn

from ignite_ipu import IPUSession, backend, create_ipu_evaluator, create_ipu_trainer

Batch = Tuple[torch.Tensor, torch.Tensor]

# Both compute in float32; sums in another order and other kernels for exp and tanh may differ.
_RELATIVE, _ABSOLUTE = 1e-3, 1e-4


def network(*more: Callable[[], nn.Module]) -> Any:
    """Return an untrained `nn.Sequential` for the task, always the same; `more` make layers for its middle, 8 wide."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), *(make() for make in more), nn.Linear(8, 3))


def batches(count: int = 4, size: int = 8) -> List[Batch]:
    """Return the task's data, 3 classes of 6 numbers, in ready batches."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count * size, 6, generator=generator)
    y = torch.randint(3, (count * size,), generator=generator)
    return list(zip(torch.split(x, size), torch.split(y, size)))


def joined(micro_batches: Sequence[Batch], calls: int = 1) -> List[Batch]:
    """Return the micro-batches joined into as many ready global batches as there are calls."""
    size = len(micro_batches) // calls
    parts = [micro_batches[at : at + size] for at in range(0, len(micro_batches), size)]
    return [(torch.cat([x for x, _ in part]), torch.cat([y for _, y in part])) for part in parts]


def sgd(model: nn.Module, lr: float = 0.3, momentum: float = 0.9, **more: Any) -> torch.optim.SGD:
    """Return torch's SGD over all weights of a model."""
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum, **more)


def adam(model: nn.Module) -> torch.optim.Adam:
    """Return torch's Adam over all weights of a model."""
    return torch.optim.Adam(model.parameters(), lr=0.02)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Sequence[Batch],
    accumulation: int = 1,
    scheduler: Any = None,
    max_norm: Optional[float] = None,
) -> List[float]:
    """Train, one update for every `accumulation` micro-batches; return the losses of the micro-batches."""
    losses = []
    model.train()
    for number, (x, y) in enumerate(data, 1):
        loss = nn.functional.cross_entropy(model(x), y)
        losses.append(loss.item())
        torch.autograd.backward(loss / accumulation)
        if number % accumulation == 0:
            if max_norm is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()
            if scheduler is not None:
                scheduler.step()
    return losses


class Pair:
    """A model and its optimizer for the device, and their twins `reference` and `expected` for plain PyTorch.

    `trainer` trains the device's, where `Bench.pair` has made one.
    """

    trainer: Any = None

    def __init__(self, optimizer: Callable[[Any], Any] = sgd, model: Callable[[], Any] = network) -> None:
        self.model, self.reference = model(), model()
        self.optimizer, self.expected = optimizer(self.model), optimizer(self.reference)
        self._untrained = _plain(self.reference)

    def run(self, data: Any, native: Optional[Sequence[Batch]] = None, **how: Any) -> List[float]:
        """Run the trainer on `data` and train the twin on it, or on `native`; return the twin's losses."""
        self.trainer.run(data)
        return self.train(data if native is None else native, **how)

    def train(self, data: Sequence[Batch], **how: Any) -> List[float]:
        """Train the twin alone, as `train` does."""
        return train(self.reference, self.expected, data, **how)

    def set(self, **values: Any) -> None:
        """Set hyper-parameters of both optimizers."""
        for each in (self.optimizer, self.expected):
            each.param_groups[0].update(values)

    def compare(self, state: bool = False, **tolerance: Any) -> None:
        """Compare the weights, which training must have changed, and with `state` the optimizers' states."""
        agree(self.model, self.reference, "weights", **tolerance)
        if state:
            found, expected = self.optimizer.state_dict()["state"], self.expected.state_dict()["state"]
            agree(found, expected, "optimizer state", **tolerance)
        moved(self.reference, self._untrained)

    def check(
        self, data: Any = None, native: Optional[Sequence[Batch]] = None, state: bool = False, **how: Any
    ) -> List[float]:
        """Run and compare; return the twin's losses."""
        losses = self.run(batches() if data is None else data, native, **how)
        self.compare(state)
        return losses


class Bench:
    """Tools of one program, and an empty folder.

    `afterwards` has something called when the program has ended, the last one first. `clear` gives back all that it has
    taken; everything is tried, and the last error raised.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        behind = contextlib.ExitStack()
        self.afterwards, self.clear = behind.callback, behind.close

    @property
    def poptorch(self) -> Any:
        return backend.poptorch()

    def options(self) -> Any:
        return self.poptorch.Options()

    def on_the_first(self) -> Any:
        """Return new options for the first IPU, which one program can have at a time."""
        return self.options().useIpuId(0)

    def trainer(self, model: nn.Module, optimizer: Any, loss_fn: Any = None, **settings: Any) -> Any:
        """Return `create_ipu_trainer(...)`, with the cross entropy unless there is a loss."""
        settings = {"options": self.options(), **settings}
        trainer = create_ipu_trainer(model, optimizer, loss_fn or nn.CrossEntropyLoss(), **settings)
        self.afterwards(trainer.ipu.close)
        return trainer

    def pair(self, optimizer: Callable[[Any], Any] = sgd, model: Callable[[], Any] = network, **settings: Any) -> Pair:
        """Return a model with its native twin, and a trainer for the former."""
        pair = Pair(optimizer, model)
        pair.trainer = self.trainer(pair.model, pair.optimizer, **settings)
        return pair

    def captured(self, optimizer: Callable[[Any], Any] = sgd, model: Callable[[], Any] = network) -> Pair:
        """Return a model with its native twin, of which the former's session is closed when the program has ended."""
        pair = Pair(optimizer, model)
        self.afterwards(lambda: IPUSession.of(pair.model).close())
        return pair

    def evaluator(self, model: nn.Module, metrics: Any = None, **settings: Any) -> Any:
        """Return `create_ipu_evaluator(...)`, whose output is the predictions."""
        if IPUSession.of(model).training is None:
            settings = {"options": self.options(), **settings}
        settings = {"output_transform": lambda x, y, y_pred: y_pred, **settings} if metrics is None else settings
        evaluator = create_ipu_evaluator(model, metrics, **settings)
        self.afterwards(evaluator.ipu.close)
        return evaluator

    def training_model(self, model: nn.Module, options: Any, optimizer: Any) -> Any:
        executor = self.poptorch.trainingModel(model, options=options, optimizer=optimizer)
        self.afterwards(executor.destroy)
        return executor

    def inference_model(self, model: nn.Module) -> Any:
        executor = self.poptorch.inferenceModel(model, options=self.options())
        self.afterwards(executor.destroy)
        return executor


def expect(condition: bool, otherwise: str) -> None:
    """See that something holds; unlike `assert`, with Python's option -O, too."""
    if not condition:
        raise AssertionError(otherwise)


def agree(found: Any, expected: Any, what: str, rtol: float = _RELATIVE, atol: float = _ABSOLUTE) -> None:
    """Compare tensors, modules' weights, numbers, or lists and dictionaries of them; bit by bit without tolerances."""
    try:
        torch.testing.assert_close(_plain(found), _plain(expected), rtol=rtol, atol=atol)
    except AssertionError as error:
        raise AssertionError(f"{what}: {error}") from None


def moved(model: nn.Module, untrained: Any = None) -> None:
    """Check that training has changed the weights of a `network()`, or those given, by more than the tolerance."""
    before = _plain(network() if untrained is None else untrained)
    change = max((a - b).abs().max().item() for a, b in zip(_plain(model).values(), before.values()))
    expect(change > 30 * _ABSOLUTE, f"training has changed no weight by more than {change}")


def _plain(value: Any) -> Any:
    return copy.deepcopy(dict(value.state_dict())) if isinstance(value, nn.Module) else value
