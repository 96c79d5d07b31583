"""Values of Ignite's engines in a recorded script: outputs of iterations, events and metrics."""

from __future__ import annotations

import itertools
import weakref
from typing import Any, Callable, Dict, Optional, Protocol

import torch
from ignite.engine import Engine, Events

from ignite_ipu.deferred.tensor.tensor import DeferredTensor
from ignite_ipu.engines.call_loader import CallLoader
from ignite_ipu.engines.trainer import IPUTrainer
from ignite_ipu.parity.fingerprints import leaves
from ignite_ipu.session.session import session_of


class Records(Protocol):
    """A recorder of values."""

    def record(self, kind: str, name: str, value: Any, line: Optional[str] = None) -> Dict[str, Any]: ...
    def defer(self, entry: Dict[str, Any], tensor: torch.Tensor, summed: bool = False) -> None: ...


class EngineValues:
    """Records the values of the engines that a script runs."""

    def __init__(self, recorder: Records) -> None:
        self._recorder = recorder
        self._engines: weakref.WeakKeyDictionary[Engine, str] = weakref.WeakKeyDictionary()
        # Those that are collected keep theirs.
        self._numbers = itertools.count()

    def run(self, original: Callable[..., Any], engine: Engine, *args: Any, **kwargs: Any) -> Any:
        if engine not in self._engines:
            name = self._engines[engine] = f"engine {next(self._numbers)}"
            engine.add_event_handler(Events.ITERATION_COMPLETED, self._iteration, name)
            for event in (Events.EPOCH_COMPLETED, Events.COMPLETED):
                engine.add_event_handler(event, self._event, name, event.name)
        return original(engine, *args, **kwargs)

    def _iteration(self, engine: Engine, name: str) -> None:
        batches = _batches_of_a_call(engine)
        for place, part in leaves(engine.state.output):
            if isinstance(part, (int, float, torch.Tensor)):
                is_deferred = isinstance(part, DeferredTensor)
                entry = self._recorder.record("engine output", f"{name}{place}", None if is_deferred else part)
                entry.update(batches=batches, mean=batches > 1 and _returns_all(engine))
                if isinstance(part, DeferredTensor):
                    self._recorder.defer(entry, part.detach())

    def _event(self, engine: Engine, name: str, event: str) -> None:
        self._recorder.record("event", f"{name}, {event}", f"epoch {engine.state.epoch}")
        iterations = self._recorder.record("event", f"{name}, {event}, iterations", float(engine.state.iteration))
        iterations["batches"] = _batches_of_a_call(engine)
        for metric, value in engine.state.metrics.items():
            for place, part in leaves(value):
                self._recorder.record("metric", f"{name}, {metric}{place}", part)


def _batches_of_a_call(engine: Engine) -> int:
    """Return the number of batches in an iteration of an engine: as many iterations of Ignite's own engine."""
    data = engine.state.dataloader
    return data.micro_batches if isinstance(data, CallLoader) else 1


def _returns_all(engine: Engine) -> bool:
    """Return whether numbers in an engine's output are means over all batches of a device call."""
    session = session_of(engine)
    program = None if session is None else session.training if isinstance(engine, IPUTrainer) else session.active
    return program is None or program.resolved.output_mode != "Final"
