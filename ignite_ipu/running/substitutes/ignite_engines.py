"""Ignite as a script sees it: its factories make IPU engines, and other engines may step through captured models."""

from __future__ import annotations

import functools
import inspect
import sys
from typing import Any, Callable, Dict, Optional

import ignite.distributed
import ignite.engine
from ignite.engine import Engine

from ignite_ipu.deferred.engine_step import with_known_values
from ignite_ipu.engines.engine import IPUEngine
from ignite_ipu.engines.factories import create_ipu_evaluator, create_ipu_trainer
from ignite_ipu.running.journal import Journal
from ignite_ipu.running.ownership import ScriptCode
from ignite_ipu.running.patches import Patches
from ignite_ipu.running.substitutes.engine_weights import EngineWeights
from ignite_ipu.running.substitutes.succession import Succession

__all__ = ["substitute_ignite"]


def substitute_ignite(
    patches: Patches,
    code: ScriptCode,
    journal: Journal,
    trained: EngineWeights,
    replication_factor: Optional[int] = None,
) -> None:
    """Let Ignite's factories make IPU engines while the script runs.

    Args:
        patches: Where the replaced attributes are kept.
        code: What is the script's own.
        journal: Where substitutions go.
        trained: Gets what trainers train.
        replication_factor: Replicas of the model that trainers use.
    """
    trainer: Any = ignite.engine.create_supervised_trainer
    evaluator: Any = ignite.engine.create_supervised_evaluator
    extra = {} if replication_factor is None else {"replication_factor": replication_factor}
    make = functools.partial(_factory, code=code, journal=journal, trained=trained)
    patches.set_everywhere("ignite", trainer, make(trainer, create_ipu_trainer, Succession(journal), extra))
    patches.set_everywhere("ignite", evaluator, make(evaluator, create_ipu_evaluator, None, {}))
    patches.set(Engine, "__init__", _engine(Engine.__init__, code))
    patches.set(IPUEngine, "run", _run(IPUEngine.run, code, journal))
    parallel: Any = vars(ignite.distributed)["Parallel"]
    patches.set(parallel, "__init__", _parallel(parallel.__init__, code, journal))
    auto_model: Any = vars(ignite.distributed)["auto_model"]
    patches.set_everywhere("ignite", auto_model, _auto_model(auto_model, code, journal))


def _factory(
    original: Callable[..., Any],
    ours: Callable[..., Any],
    succession: Optional[Succession],
    extra: Dict[str, Any],
    code: ScriptCode,
    journal: Journal,
    trained: EngineWeights,
) -> Any:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def create(*args: Any, **kwargs: Any) -> Any:
        line, _ = code.line_behind(sys._getframe(1))
        arguments = dict(signature.bind(*args, **kwargs).arguments)
        # Whatever device the script chose, this run is on IPUs.
        arguments.pop("device", None)
        became = f"{ours.__name__}()"
        if arguments.get("scaler"):
            # A GradScaler of the script's, too.
            arguments["scaler"] = True
            became += " with automatic loss scaling"
        steps = arguments.get("gradient_accumulation_steps", 1)
        if steps != 1:
            became += f", an iteration of which is one update from {steps} batches"
        before = "" if succession is None else succession.make_way(arguments["model"], line)
        if before:
            became += f", which takes the model over from the trainer of {before}"
        journal.note(line, f"{original.__name__}()", became)

        def refuse_frozen(text: str) -> None:
            raise journal.refuse(line, f"{original.__name__}()", text)

        engine = ours(**arguments, **extra)
        if succession is not None:
            succession.add(engine, line)
        engine.ipu.refuse_frozen = refuse_frozen
        trained.add(engine.ipu)
        return engine

    return create


def _engine(original: Callable[..., Any], code: ScriptCode) -> Any:
    @functools.wraps(original)
    def __init__(engine: Any, process_function: Any, *args: Any, **kwargs: Any) -> None:
        written = getattr(inspect.unwrap(process_function), "__code__", None)
        if written is not None and code.owns(written.co_filename):
            process_function = _with_values(process_function)
        original(engine, process_function, *args, **kwargs)

    return __init__


def _with_values(process_function: Callable[..., Any]) -> Any:
    """Return a step whose output, which handlers and metrics read, holds ordinary tensors once their update has run."""

    @functools.wraps(process_function)
    def step(engine: Any, batch: Any) -> Any:
        return with_known_values(process_function, engine, batch)

    return step


def _run(original: Callable[..., Any], code: ScriptCode, journal: Journal) -> Any:
    @functools.wraps(original)
    def run(engine: Any, data: Any = None, *args: Any, **kwargs: Any) -> Any:
        if data is not None:
            line, _ = code.line_behind(sys._getframe(1))
            journal.note(line, f"run({type(data).__name__})", "over a poptorch.DataLoader of the same data")
        return original(engine, data, *args, **kwargs)

    return run


def _parallel(original: Callable[..., Any], code: ScriptCode, journal: Journal) -> Any:
    @functools.wraps(original)
    def __init__(parallel: Any, backend: Any = None, nproc_per_node: Any = None, *args: Any, **kwargs: Any) -> None:
        line = code.line_of(sys._getframe(1))
        if line is not None and nproc_per_node not in (None, 1):
            raise journal.refuse(
                line,
                f"Parallel(nproc_per_node={nproc_per_node})",
                "one process drives all IPUs, and replicas are asked for with --replication-factor.",
            )
        if line is not None and backend is not None and backend != "gloo":
            journal.note(line, f"Parallel(backend={backend!r})", "one process without a backend")
            backend, nproc_per_node = None, None
        original(parallel, backend, nproc_per_node, *args, **kwargs)

    return __init__


def _auto_model(original: Callable[..., Any], code: ScriptCode, journal: Journal) -> Any:
    @functools.wraps(original)
    def auto_model(model: Any, *args: Any, **kwargs: Any) -> Any:
        line = code.line_of(sys._getframe(1))
        if line is None:
            return original(model, *args, **kwargs)
        journal.note(line, "auto_model()", "the model as it is")
        return model

    return auto_model
