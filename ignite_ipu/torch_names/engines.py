"""Private names of Ignite and accelerate."""

from __future__ import annotations

import importlib
import inspect
from typing import Any, Callable, Dict, List, Tuple

from ignite.engine import Engine
from ignite.engine.deterministic import DeterministicEngine

from ignite_ipu.torch_names.table import attribute, find, inherited, word

__all__ = ["PREPARED", "event_handlers_of", "prepare_batch", "set_random_states"]

prepare_batch: Callable[..., Tuple[Any, Any]] = find(
    "ignite.engine._prepare_batch",
    "0.4.13",
    "The factories need the argument prepare_batch.",
)
"""Ignite's default `prepare_batch`: batches of inputs and targets."""
set_random_states: Callable[[List[Any]], None] = find(
    "ignite.engine.deterministic._set_rng_states", "0.4.13", "A deterministic trainer cannot be resumed."
)

_HANDLERS = attribute(
    "ignite.engine.Engine._event_handlers",
    "0.4.13",
    "Events that need work of their own, such as MICRO_BATCH_COMPLETED, are not fired.",
    lambda: Engine(lambda engine, batch: None),
)


def event_handlers_of(engine: Engine) -> Dict[Any, List[Tuple[Callable[..., Any], Tuple[Any, ...], Any]]]:
    """Return the handlers of an engine by event, each with its arguments, in lists that may be changed."""
    handlers: Dict[Any, Any] = getattr(engine, _HANDLERS)
    return handlers


_ENGINE, _TRAINER = "ignite_ipu.engines.engine", "ignite_ipu.engines.trainer"
_DETERMINISTIC = "ignite_ipu.engines.deterministic_trainer"
inherited(
    "ignite.engine.Engine._handle_exception",
    "0.4.13",
    "The device is not released when an exception ends a run.",
    _ENGINE,
    _TRAINER,
)
inherited(
    "ignite.engine.Engine._setup_dataloader_iter",
    "0.4.13",
    "A run does not resume within an epoch.",
    _TRAINER,
    _DETERMINISTIC,
)
for _name in ("_setup_engine", "_from_iteration", "_setup_seed"):
    inherited(
        f"ignite.engine.DeterministicEngine.{_name}",
        "0.4.13",
        "A deterministic trainer cannot be resumed.",
        _DETERMINISTIC,
    )
inherited("ignite.engine.Engine._get_data_length", "0.4.13", "A deterministic trainer cannot run.", _DETERMINISTIC)
for _name, _lost in (
    ("_dataloader_iter", "A run does not resume within an epoch."),
    ("_dataloader_len", "A deterministic trainer cannot run."),
    ("_init_iter", "A deterministic trainer cannot be resumed."),
):
    inherited(
        f"ignite.engine.Engine.{_name}",
        "0.4.13",
        _lost,
        _TRAINER,
        _DETERMINISTIC,
        check=lambda name=_name: name in inspect.getsource(DeterministicEngine._setup_engine),  # type: ignore[misc]
    )

PREPARED = word(
    "accelerate.Accelerator._is_accelerate_prepared",
    "0.20",
    "An optimizer that was wrapped before prepare() is wrapped again.",
    check=lambda: "_is_accelerate_prepared" in inspect.getsource(importlib.import_module("accelerate.accelerator")),
)
"""Attribute that `Accelerator.prepare` gives what it returns."""
