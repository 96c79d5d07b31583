"""One script, two machines: the objects that a compatibility row works with, on the host or on an IPU."""

from __future__ import annotations

import contextlib
import importlib
import math
import sys
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional

import torch
from ignite.engine import Engine, Events, create_supervised_evaluator, create_supervised_trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ignite_ipu import create_ipu_evaluator, create_ipu_trainer


class Either:
    """Names that are in one package in some releases of Ignite and in another in others."""

    def __init__(self, *paths: str) -> None:
        self._paths = paths

    def __getattr__(self, name: str) -> Any:
        for path in self._paths:
            with contextlib.suppress(ImportError):
                module = importlib.import_module(path)
                if hasattr(module, name):
                    return getattr(module, name)
                return importlib.import_module(f"{path}.{name}")
        raise AttributeError(f"{name} is in none of {self._paths} of this release")


handlers = Either("ignite.handlers", "ignite.contrib.handlers")
metrics = Either("ignite.metrics", "ignite.contrib.metrics")
SAMPLES, FEATURES, CLASSES, BATCH = 48, 4, 3, 8


class Side:
    """Makes the model, the data and the engines of a script, the same ones on both sides."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.folder = folder / kind
        self.folder.mkdir()
        self._sessions: List[Any] = []

    @property
    def native(self) -> bool:
        return self.kind == "native"

    def model(self) -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(FEATURES, 6), nn.Tanh(), nn.Linear(6, CLASSES))

    def sgd(self, model: nn.Module, lr: float = 0.1) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)

    def data(self, samples: int = SAMPLES) -> TensorDataset:
        generator = torch.Generator().manual_seed(2)
        x = torch.randn(samples, FEATURES, generator=generator)
        return TensorDataset(x, torch.randint(0, CLASSES, (samples,), generator=generator))

    def loader(self, samples: int = SAMPLES, **kwargs: Any) -> DataLoader:
        return DataLoader(self.data(samples), batch_size=BATCH, **kwargs)

    def trainer(
        self, model: nn.Module, optimizer: Any, loss_fn: Optional[Callable[..., Any]] = None, **kwargs: Any
    ) -> Engine:
        loss_fn = loss_fn or nn.CrossEntropyLoss()
        if self.native:
            return create_supervised_trainer(model, optimizer, loss_fn, **kwargs)
        trainer = create_ipu_trainer(model, optimizer, loss_fn, **kwargs)
        self._sessions.append(trainer.ipu)
        return trainer

    def evaluator(self, model: nn.Module, metrics: Optional[Dict[str, Any]] = None, **kwargs: Any) -> Engine:
        if self.native:
            return create_supervised_evaluator(model, metrics or {}, **kwargs)
        evaluator = create_ipu_evaluator(model, metrics, **kwargs)
        self._sessions.append(evaluator.ipu)
        return evaluator

    def setup(self) -> Any:
        """Return a model, its optimizer and its trainer."""
        model = self.model()
        optimizer = self.sgd(model)
        return model, optimizer, self.trainer(model, optimizer)

    def close(self) -> None:
        for session in self._sessions:
            session.close()


def follow(engine: Engine, event: Any, read: Callable[[Engine], Any]) -> List[Any]:
    """Return a list that `read(engine)` is appended to at every event."""
    seen: List[Any] = []
    engine.add_event_handler(event, lambda: seen.append(read(engine)))
    return seen


def losses(engine: Engine) -> List[float]:
    """Return a list that gets the loss of every iteration."""
    return follow(engine, Events.ITERATION_COMPLETED, lambda e: (e.state.iteration, e.state.output))


def weights(model: nn.Module) -> Dict[str, torch.Tensor]:
    """Return a copy of a model's weights as they are now."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


@contextlib.contextmanager
def stand_ins(modules: Dict[str, Any]) -> Iterator[None]:
    """Put modules in the place of libraries that are not installed, and take only them away again."""
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def differences(one: Any, other: Any, where: str = "record", tolerance: float = 1e-4) -> List[str]:
    """Return where two records differ: numbers by more than rounding, anything else at all."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        one, other = one.detach().cpu().double().tolist(), other.detach().cpu().double().tolist()
    if isinstance(one, dict) and isinstance(other, dict):
        one, other = _with_something(one), _with_something(other)
        if one.keys() != other.keys():
            return [f"{where}: keys {sorted(map(str, one))} != {sorted(map(str, other))}"]
        return [text for key in one for text in differences(one[key], other[key], f"{where}[{key!r}]", tolerance)]
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        if len(one) != len(other):
            return [f"{where}: lengths {len(one)} != {len(other)}: {one!r} != {other!r}"]
        pairs = enumerate(zip(one, other))
        return [text for place, (a, b) in pairs for text in differences(a, b, f"{where}[{place}]", tolerance)]
    if isinstance(one, (bool, int, float)) and isinstance(other, (bool, int, float)):
        same = math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance) or (one != one and other != other)
        return [] if same else [f"{where}: {one!r} != {other!r}"]
    return [] if one == other else [f"{where}: {one!r} != {other!r}"]


def _with_something(states: Dict[Any, Any]) -> Dict[Any, Any]:
    """Leave out states of weights that hold nothing, as SGD without momentum has them in PyTorch 2.0."""
    return {key: state for key, state in states.items() if state != {"momentum_buffer": None}}
