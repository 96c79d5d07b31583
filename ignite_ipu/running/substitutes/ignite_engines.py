"""Ignite in a script: engines step through captured models, so that they count iterations as without IPUs.

Only settings that need several micro-batches per call or several IPUs, and half precision, turn Ignite's factories into
those of this library.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import weakref
from typing import Any, Callable, Dict, Optional, Tuple

import ignite.distributed
import ignite.engine
from ignite.engine import Engine, Events
from torch import nn

from ignite_ipu import backend
from ignite_ipu.capabilities.wrappers import WRAPPERS
from ignite_ipu.deferred import captured
from ignite_ipu.deferred.engine_step import with_known_values
from ignite_ipu.deferred.settings import capture_refusal, captured_options
from ignite_ipu.engines.factories import create_ipu_evaluator, create_ipu_trainer
from ignite_ipu.errors import CaptureError, RunError
from ignite_ipu.launched import is_instance, local_processes
from ignite_ipu.program.config import OF_PIPELINES, IPUConfig
from ignite_ipu.program.options import evaluation_options, training_options
from ignite_ipu.program.traced_places import split_place
from ignite_ipu.program.user_code import OURS
from ignite_ipu.running.patches import Substitutes
from ignite_ipu.running.script_code import FileLine
from ignite_ipu.running.substitutes.gradients import EngineWeights
from ignite_ipu.running.substitutes.parallel import refuse_processes
from ignite_ipu.session.data_parallel import wrapped
from ignite_ipu.session.hooks import SessionFollower
from ignite_ipu.session.processes import connected, unwrapped
from ignite_ipu.session.session import IPUSession, known_session


def substitute_ignite(substitutes: Substitutes, trained: EngineWeights, config: IPUConfig) -> None:
    """Let engines step through captured models, and Ignite's factories make IPU engines where the config needs them."""
    trainer: Any = ignite.engine.create_supervised_trainer
    evaluator: Any = ignite.engine.create_supervised_evaluator
    make = functools.partial(_factory, substitutes=substitutes, trained=trained)
    succession = _Succession(substitutes)
    several = _needs_factories(config)

    def trains_in_factory(arguments: Dict[str, Any]) -> bool:
        # Half precision needs a program of its own. With accumulation, an iteration of a factory would be an update.
        return several or (arguments.get("amp_mode") == "amp" and arguments.get("gradient_accumulation_steps", 1) == 1)

    def evaluates_in_factory(arguments: Dict[str, Any]) -> bool:
        model = unwrapped(arguments["model"])
        session = known_session(model) if isinstance(model, nn.Module) and captured(model) is None else None
        return several or (session is not None and session.training is not None)

    made = make(trainer, create_ipu_trainer, succession, lambda model: config, trains_in_factory)
    substitutes.set_everywhere("ignite", trainer, made)
    made = make(evaluator, create_ipu_evaluator, None, functools.partial(_of_evaluator, config), evaluates_in_factory)
    substitutes.set_everywhere("ignite", evaluator, made)

    def engine(frame: Any, original: Any, own: Any, process_function: Any, *args: Any, **kwargs: Any) -> None:
        written = getattr(inspect.unwrap(process_function), "__code__", None)
        if written is not None and not written.co_filename.startswith(OURS):
            process_function = _with_values(process_function)
        original(own, process_function, *args, **kwargs)

    def parallel(
        line: Any, original: Any, own: Any, backend: Any = None, nproc_per_node: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        if nproc_per_node not in (None, 1):
            name, launched = f"Parallel(nproc_per_node={nproc_per_node})", local_processes()[1]
            if nproc_per_node != launched:
                refuse_processes(substitutes, name, line)
                substitutes.note(name, f"{nproc_per_node} processes on gloo", line)
                original(own, "gloo", nproc_per_node, *args, **kwargs)
                return
            substitutes.note(name, f"the {launched} processes that the launcher has started", line)
            nproc_per_node = None
        if backend is not None and backend != "gloo":
            processes = int(os.environ.get("WORLD_SIZE") or 1)
            became = "one process without a backend" if processes == 1 else f"{processes} processes on gloo"
            substitutes.note(f"Parallel(backend={backend!r})", became, line)
            backend, nproc_per_node = None if processes == 1 else "gloo", None
        original(own, backend, nproc_per_node, *args, **kwargs)

    def auto_model(line: Any, original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        processes = connected()[1]
        if processes == 1:
            substitutes.note("auto_model()", WRAPPERS["ignite.distributed.auto_model"].sentence, line)
            return model
        substitutes.note("auto_model()", f"the model, whose gradients are averaged over {processes} processes", line)
        return wrapped(nn.parallel.DistributedDataParallel, model, **kwargs)

    substitutes.calls(Engine, "__init__", engine)
    distributed = vars(ignite.distributed)
    substitutes.own_calls(distributed["Parallel"], "__init__", parallel)
    original = distributed["auto_model"]
    substitutes.set_everywhere("ignite", original, substitutes.of_own_calls(original, auto_model))


def _needs_factories(config: IPUConfig) -> bool:
    """Return whether settings ask for several micro-batches per call, or for several IPUs per replica."""
    if config.split_batch is None and any(getattr(config, name) is not None for name in OF_PIPELINES):
        return True  # an iteration of an engine is one micro-batch
    if not config.said() and not is_instance():
        return False
    try:
        return capture_refusal(config) is not None or int(captured_options(config).replication_factor) > 1
    except CaptureError:
        return True


def _of_evaluator(config: IPUConfig, model: Any) -> IPUConfig:
    """Return the settings of an evaluator: those that its model's trainer does not have, or all without a trainer."""
    settings = {name: getattr(config, name) for name in ("mixed_precision", "loader_mode")}
    session = known_session(unwrapped(model)) if isinstance(model, nn.Module) else None
    if config.said() and (session is None or session.training is None):
        settings["options"] = evaluation_options(training=training_options(config))
        settings.update({name: getattr(config, name) for name in OF_PIPELINES})
    return IPUConfig(**settings)


class _FrozenRefusal(SessionFollower):
    """Refuses a trainer whose model changes Python values in every call."""

    def __init__(self, substitutes: Substitutes, line: Any) -> None:
        self._substitutes, self._line = substitutes, line

    def refuse_frozen(self, reason: str) -> None:
        place, reason = split_place(reason)
        raise self._substitutes.remembered(RunError(place or self._line, reason))

    report_kept = refuse_frozen


def _factory(
    original: Callable[..., Any],
    ours: Callable[..., Any],
    succession: Optional[_Succession],
    config: Callable[[Any], IPUConfig],
    chosen: Callable[[Dict[str, Any]], bool],
    substitutes: Substitutes,
    trained: EngineWeights,
) -> Any:
    """Return a function that makes Ignite's own engine, or where it is `chosen` by the arguments, one of `ours`."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def create(*args: Any, **kwargs: Any) -> Any:
        line, _ = substitutes.code.line_behind(sys._getframe(1))
        arguments = dict(signature.bind(*args, **kwargs).arguments)
        if not chosen(arguments):
            substitutes.note(f"{original.__name__}()", "its step runs the captured model", line)
            return original(*args, **kwargs)
        # This run is on IPUs, also if the script chose another device.
        arguments.pop("device", None)
        became = f"{ours.__name__}()"
        if arguments.get("scaler"):
            # A GradScaler of the script's, too.
            arguments["scaler"] = True
            became += " with automatic loss scaling"
        steps = arguments.get("gradient_accumulation_steps", 1)
        if steps != 1:
            became += f", an iteration of which is one update from {steps} batches"
        if succession is not None and steps == 1 and connected()[1] == 1:
            arguments["drop_last"] = False  # Ignite's trains on a smaller last batch, too
        before = "" if succession is None else succession.make_way(arguments["model"], line)
        if before:
            became += f", which takes the model over from the trainer of {before}"
        substitutes.note(f"{original.__name__}()", became, line)

        def note_data(engine: Engine) -> None:
            if isinstance(engine.state.dataloader, backend.poptorch().DataLoader):
                substitutes.note("run(DataLoader)", "over a poptorch.DataLoader of the same data")

        substitutes.use_settings()
        engine = ours(**arguments, config=config(arguments["model"]))
        engine.add_event_handler(Events.STARTED, note_data)
        if succession is not None:
            succession.add(engine, line)
            engine.pins_random_states = False  # the script's epochs start where its handlers have left the generators
        engine.ipu.hooks.follow_by(_FrozenRefusal(substitutes, line))
        trained.add(engine.ipu)
        return engine

    return create


def _with_values(process_function: Callable[..., Any]) -> Any:
    """Return a step whose output, which handlers and metrics read, holds ordinary tensors once their update has run."""

    @functools.wraps(process_function)
    def step(engine: Any, batch: Any) -> Any:
        return with_known_values(process_function, engine, batch)

    return step


class _Succession:
    """Lets a trainer that a script makes take a model over from the one that it made before, which may not go on."""

    def __init__(self, substitutes: Substitutes) -> None:
        self._substitutes = substitutes
        self._newest: weakref.WeakKeyDictionary[IPUSession, Tuple[Optional[FileLine], weakref.ref[Engine]]]
        self._newest = weakref.WeakKeyDictionary()

    def make_way(self, model: Any, line: Optional[FileLine]) -> str:
        """Stop a model's trainer for another, made at a line; returns where it was made, "" if there is none."""
        session = known_session(unwrapped(model)) if isinstance(model, nn.Module) else None
        if session is None or session.training is None or session not in self._newest:
            return ""
        made, known = self._newest.pop(session)
        session.stop_training()
        trainer = known()
        if trainer is not None:
            trainer.add_event_handler(Events.ITERATION_STARTED, self._refuse, made, _place(line))
        return _place(made)

    def add(self, trainer: Any, line: Optional[FileLine]) -> None:
        self._newest[trainer.ipu] = line, weakref.ref(trainer)

    def _refuse(self, made: Optional[FileLine], other: str) -> None:
        raise self._substitutes.refusal(
            "create_supervised_trainer()",
            f"another trainer, made at {other}, has taken this one's model over, and one program at a time trains a "
            "model. Run this trainer to its end before the other is made, or train with one trainer.",
            made,
        )


def _place(line: Optional[FileLine]) -> str:
    return "an unknown line" if line is None else f"{os.path.basename(line[0])}:{line[1]}"
