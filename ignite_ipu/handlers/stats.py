"""`IPUStats`: throughput without compile time, transfers and waiting times, as metrics that any Ignite logger logs."""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, List, Optional

from ignite.engine import Engine, Events

from ignite_ipu.handlers.device_info import DeviceInfo
from ignite_ipu.optimizers.conversion import Conversion
from ignite_ipu.program.geometry import BatchGeometry
from ignite_ipu.program.tensors.trees import tensors_in
from ignite_ipu.session.hooks import IPUEvents
from ignite_ipu.session.program import ModelProgram
from ignite_ipu.session.session import IPUSession, session_of

__all__ = ["IPUStats"]

_PREFIX = "ipu/"
_UNITS = ("samples", "micro_batches", "weight_updates")


class IPUStats:
    """Measures an engine's steps and writes the results into `engine.state.metrics`.

    After every epoch, and after every `every` iterations if that is given, about the time since the last writing::

        IPUStats().attach(trainer)
        logger.attach_output_handler(trainer, Events.EPOCH_COMPLETED, tag="training", metric_names="all")

    - `ipu/samples_per_second`, `ipu/micro_batches_per_second`, `ipu/weight_updates_per_second`: over the time that
      steps and the loader took; compiling and loading a program, and handlers such as an evaluation, are left out. The
      last is for training only.
    - `ipu/step_seconds`, `ipu/data_seconds`: for one device call, and waiting for its batch.
    - `ipu/compile_seconds`, `ipu/attach_seconds`: all in all so far, the latter for programs that return to their IPUs,
      too; a first attach that is part of PopTorch's compilation counts there.
    - `ipu/bytes_to_device`, `ipu/bytes_from_device`: copied batches and weights, and the bytes of the engine's output
      and of the weights' downloads, in the measured time.

    - `ipu/latency_seconds`, `ipu/compute_seconds`: PopTorch's measurement of the last call, on average over its
      micro-batches: from the first input to the last output (`getLatency`), and between the copies
      (`getComputeLatency`).
    - `ipu/planned_bytes_per_ipu`: memory that the fullest IPU needs by the plan or estimate of a pipeline.
    - `ipu/state_bytes`: weights, buffers and the optimizer's state of one replica, which are in memory during a run.
    - `ipu/cycles`: of the last call, with `cycles=True`, on IPUs alone.
    - `ipu/utilisation_percent`, `ipu/session_utilisation_percent`, `ipu/power_watts`, `ipu/clock_mhz`,
      `ipu/die_celsius`, `ipu/board_celsius`: averages over this process's IPUs, if `gcipuinfo` is installed, which
      comes with the SDK.

    Neither PopTorch 3.3 nor `gcipuinfo` measures how much of an IPU's memory is in use while it runs. The reports of
    `PopVisionProfiler` have it by tile, with the activations that `ipu/state_bytes` leaves out. On the emulator the
    times are this machine's and say nothing about an IPU.

    Args:
        geometry: Returns the arithmetic of one device call, for an engine with PopTorch steps of your own; engines of
            this library have it.
        every: Write after so many iterations, too, as a progress bar needs it.
        cycles: Ask for cycle counts; the program is compiled with `IPUConfig(options={"logCycleCount": True})`.
        clock: Gives the time in seconds.
    """

    def __init__(
        self,
        geometry: Optional[Callable[[], Optional[BatchGeometry]]] = None,
        every: Optional[int] = None,
        clock: Callable[[], float] = time.perf_counter,
        cycles: bool = False,
    ) -> None:
        self._geometry = geometry
        self._every = every
        self._clock = clock
        self._cycles = cycles
        self._program: Optional[ModelProgram] = None
        self._totals = {"compile_seconds": 0.0, "attach_seconds": 0.0}
        self._since: Dict[str, float] = {}
        self._marks: Dict[str, float] = {}
        self._not_stepping = 0.0  # of the step that has begun
        self._counted: List[int] = []
        self._session: Optional[IPUSession] = None
        self._weight_bytes = 0
        self._device = DeviceInfo()
        self._reset()

    def attach(self, engine: Engine) -> None:
        """Measure this engine."""
        session = session_of(engine)
        if session is not None:
            self._session = session
            self._weight_bytes = _bytes([*session.model.parameters(), *session.model.buffers()])
            engine.add_event_handler(IPUEvents.COMPILE_STARTED, self._mark, "compile")
            engine.add_event_handler(IPUEvents.COMPILE_COMPLETED, self._waited, "compile")
            engine.add_event_handler(IPUEvents.DEVICE_ATTACHING, self._mark, "attach")
            engine.add_event_handler(IPUEvents.DEVICE_ATTACHED, self._waited, "attach")
            engine.add_event_handler(IPUEvents.WEIGHTS_TO_DEVICE, self._moved, "bytes_to_device")
            engine.add_event_handler(IPUEvents.WEIGHTS_TO_HOST, self._moved, "bytes_from_device")
        engine.add_event_handler(Events.GET_BATCH_STARTED, self._mark, "data")
        engine.add_event_handler(Events.GET_BATCH_COMPLETED, self._got_batch)
        engine.add_event_handler(Events.ITERATION_STARTED, self._begin_step)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._end_step)
        if self._every is not None:
            engine.add_event_handler(Events.ITERATION_COMPLETED(every=self._every), self._write)
        engine.add_event_handler(Events.EPOCH_COMPLETED, self._write)

    def _reset(self) -> None:
        names = ("steps", *_UNITS, "step_seconds", "data_seconds", "bytes_to_device", "bytes_from_device")
        self._since = dict.fromkeys(names, 0)

    def _mark(self, engine: Engine, what: str) -> None:
        self._marks[what] = self._clock()

    def _passed(self, what: str) -> float:
        return self._clock() - self._marks.pop(what, self._clock())

    def _got_batch(self, engine: Engine) -> None:
        self._since["data_seconds"] += self._passed("data")

    def _begin_step(self, engine: Engine) -> None:
        self._not_stepping = 0.0
        self._counted = _counts(engine)
        self._marks["step"] = self._clock()

    def _end_step(self, engine: Engine) -> None:
        since = self._since
        since["step_seconds"] += self._passed("step") - self._not_stepping
        since["steps"] += 1
        since["bytes_to_device"] += _bytes(engine.state.batch)
        since["bytes_from_device"] += _bytes(engine.state.output)
        geometry, counted = self._find_geometry(engine), _counts(engine)
        if counted != self._counted:
            for name, now, before in zip(_UNITS, counted, self._counted):
                since[name] += now - before
        elif geometry is not None:
            rows = [tensor.shape[0] for tensor in tensors_in(engine.state.batch) if tensor.dim()]
            since["samples"] += min([geometry.global_batch_size, *rows])
            since["micro_batches"] += geometry.input_micro_batches
            if self._program is None or self._program.kind.training:
                since["weight_updates"] += geometry.updates_per_call

    def _waited(self, engine: Engine, what: str) -> None:
        seconds = self._passed(what)
        # The engines of one session get each other's events; events between two steps are the other's.
        if "step" in self._marks:
            self._totals[f"{what}_seconds"] += seconds
            self._not_stepping += seconds

    def _moved(self, engine: Engine, direction: str) -> None:
        self._since[direction] += self._weight_bytes

    def _find_geometry(self, engine: Engine) -> Optional[BatchGeometry]:
        if self._geometry is not None:
            return self._geometry()
        if self._session is None:
            return None
        self._program = self._session.active
        return None if self._program is None else self._program.geometry

    def _of_device(self, program: ModelProgram) -> Dict[str, float]:
        """Return the values of PopTorch and a plan for a program; handlers in between may have taken its IPUs."""
        found, executor = {}, program.executor
        plan = None if program.placing is None else program.placing.plan
        if plan is not None:
            found["planned_bytes_per_ipu"] = max(float(memory.total) for memory in plan.memory_per_ipu)
        if executor is not None and executor.isAttachedToDevice():
            found["latency_seconds"] = executor.getLatency()[2]
            found["compute_seconds"] = executor.getComputeLatency()[2]
            if self._cycles:
                found["cycles"] = float(executor.cycleCount())
        return found

    def _optimizer_bytes(self, program: ModelProgram) -> int:
        """Return the bytes of the state that the device's optimizer keeps for the trained weights."""
        session = self._session
        if session is None or session.link is None or not program.kind.training:
            return 0
        conversion = session.link.conversion
        if not isinstance(conversion, Conversion):
            return 0  # updates are made on the host
        groups = conversion.source.param_groups
        slots = len(conversion.kind.slots_of(groups, conversion.variable))
        return slots * _bytes([each for group in groups for each in group["params"] if each.requires_grad])

    def _write(self, engine: Engine) -> None:
        since = self._since
        steps = since["steps"]
        if not steps:
            return
        seconds = since["step_seconds"] + since["data_seconds"]
        found = {name: float(since[name]) for name in ("bytes_to_device", "bytes_from_device")}
        found.update(self._totals)
        found.update({name: since[name] / steps for name in ("step_seconds", "data_seconds")})
        if seconds > 0:
            found.update({f"{name}_per_second": since[name] / seconds for name in _UNITS if since[name]})
        if self._program is not None:
            found.update(self._of_device(self._program))
            found["state_bytes"] = float(self._weight_bytes + self._optimizer_bytes(self._program))
        found.update(self._device.metrics())
        engine.state.metrics.update({f"{_PREFIX}{name}": value for name, value in found.items()})
        self._reset()


def _counts(engine: Engine) -> List[int]:
    """Return the counts of an engine so far, if it is a trainer; one of its iterations may have several calls."""
    return [getattr(engine.state, name, 0) for name in _UNITS]


def _bytes(structure: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_in(structure))
