"""The automatic report: a profile of one run in JSON, and a timeline that chrome://tracing and Perfetto open.

It is written when the engine options ask for it, as `Options.enableProfiling` or POPLAR_ENGINE_OPTIONS do, into a
directory named after the model. Times are the host's: they show what the program does, not how fast an IPU would be.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import re
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Protocol, Set

import torch
from torch import fx

from ignite_ipu.emulator.compiler.batching import Batching
from ignite_ipu.emulator.compiler.graph import Graph
from ignite_ipu.emulator.compiler.placement import Placement
from ignite_ipu.emulator.device.device import Counters
from ignite_ipu.emulator.errors import backend_error
from ignite_ipu.emulator.logs import logger
from ignite_ipu.emulator.options import Options
from ignite_ipu.emulator.runtime.executable import Executable
from ignite_ipu.emulator.runtime.training_step import TrainingStep
from ignite_ipu.emulator.values.nested import leaves
from ignite_ipu.emulator.version import __version__

ENGINE_VARIABLE = "POPLAR_ENGINE_OPTIONS"
PROFILE, TIMELINE = "profile.json", "timeline.json"
_MOST_HOST_CALLS = 10_000
_HOST = 0
_BACKWARD = "backward"
_CALL = re.compile(r"^    (\w+) = (_\d+)\(", re.M)


@dataclasses.dataclass(frozen=True)
class Span:
    """Something that took time, in seconds of `time.perf_counter`.

    Attributes:
        name: What it was.
        start, end: When.
        process: 0 for the host, else 1 + the IPU, counted over all replicas.
        row: The line of the timeline.
        about: Further facts.
    """

    name: str
    start: float
    end: float
    process: int = _HOST
    row: str = "calls"
    about: Dict[str, Any] = dataclasses.field(default_factory=dict)


def engine_options(options: Options) -> Dict[str, str]:
    """Return the options of the engine: the program's, overridden by the environment's.

    Raises:
        Error: The environment variable holds no JSON object.
    """
    chosen = dict(options._Popart._value("engineOptions", {}))
    text = os.environ.get(ENGINE_VARIABLE)
    if text:
        try:
            chosen.update({str(name): str(value) for name, value in json.loads(text).items()})
        except (ValueError, AttributeError):
            raise backend_error(
                f'{ENGINE_VARIABLE} must be a JSON object such as {{"autoReport.all": "true"}}, got {text!r}.'
            ) from None
    return chosen


def report_for(options: Options, model_name: str) -> Optional[Report]:
    """Return the report that the options ask for, None when they ask for none."""
    chosen = engine_options(options)
    wanted = [name for name in chosen if name.startswith("autoReport.") and chosen[name].lower() == "true"]
    if not wanted:
        return None
    return Report(os.path.join(chosen.get("autoReport.directory", "."), model_name), chosen)


class Report:
    """What is known of one executor's program, for its files.

    Args:
        directory: Where they go; made if it does not exist.
        chosen: The engine options in force.
    """

    def __init__(self, directory: str, chosen: Dict[str, str]) -> None:
        self.directory = directory
        self._chosen = chosen
        self._host: List[Span] = []
        self._device: List[Span] = []
        self._profiled = self._written = False

    @contextlib.contextmanager
    def host_call(self, name: str) -> Iterator[None]:
        """Note how long the `with` block takes, as a call of the host."""
        start = time.perf_counter()
        try:
            yield
        finally:
            if len(self._host) < _MOST_HOST_CALLS:
                self._host.append(Span(name, start, time.perf_counter()))

    def add(self, name: str, start: float, end: float) -> None:
        """Note a call of the host that is over."""
        self._host.append(Span(name, start, end))

    @property
    def is_due(self) -> bool:
        """Whether a run was profiled that no file tells of yet."""
        return self._profiled and not self._written

    @contextlib.contextmanager
    def profiled(self, program: Reported, executable: Executable, step: Optional[TrainingStep]) -> Iterator[None]:
        """Time each operator of the run in the `with` block, if it is the program's first."""
        if self._profiled:
            yield
            return
        self._profiled = True
        graph = executable.graph
        timed = _TimedGraph(program, self._device)
        executable.graph = dataclasses.replace(graph, run=timed.run)
        if step is not None:
            # Instance attributes hide the methods until they are deleted again.
            step.backward = timed.around(_BACKWARD, step.backward)  # type: ignore[method-assign]
            step.update = timed.around("update", step.update)  # type: ignore[method-assign]
        try:
            yield
        finally:
            executable.graph = graph
            if step is not None:
                del step.backward, step.update

    def write(self, program: Reported, counters: Counters, seconds: float) -> None:
        """Write both files, in the place of earlier ones.

        Args:
            seconds: How long compiling took.
        """
        self._written = True
        try:
            os.makedirs(self.directory, exist_ok=True)
            self._write(PROFILE, self._profile(program, counters, seconds))
            self._write(TIMELINE, {"traceEvents": self._events(), "displayTimeUnit": "ms"})
        except OSError as error:
            logger.warning("The report could not be written to %s: %s.", self.directory, error)

    def _write(self, name: str, content: Any) -> None:
        with open(os.path.join(self.directory, name), "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1, default=str)

    def _profile(self, program: Reported, counters: Counters, seconds: float) -> Dict[str, Any]:
        spent: Dict[str, List[float]] = {}
        backward: Dict[str, float] = {}
        for span in self._device:
            name = str(span.about.get("node", span.name))
            if span.about.get("pass") == _BACKWARD:
                backward[name] = backward.get(name, 0.0) + span.end - span.start
            else:
                spent.setdefault(name, []).append(span.end - span.start)
        operators = [
            {
                "node": node.name,
                "operator": node.meta["operator"],
                "ipu": node.meta["site"].ipu,
                "stage": node.meta["site"].stage,
                "phase": node.meta["site"].phase,
                "block": node.meta["site"].block,
                "scope": node.meta["scope"],
                "source": node.meta["source"],
                "shape": node.meta.get("shape"),
                "dtype": node.meta.get("dtype"),
                "runs": len(spent.get(node.name, [])),
                "seconds": sum(spent.get(node.name, [])),
                "backward_seconds": backward.get(node.name, 0.0),
            }
            for node in program.graph.nodes.nodes
            if node.name in spent
        ]
        return {
            "note": "Made by the emulator: times are those of the host's CPU.",
            "version": __version__,
            "compile_seconds": seconds,
            "ipus": program.ipus,
            "batching": dataclasses.asdict(program.batching),
            "engine_options": self._chosen,
            "memory_bytes": program.memory(),
            "counters": dataclasses.asdict(counters),
            "operators": operators,
            "backward_seconds": sum(spent.get(_BACKWARD, [])),
            "update_seconds": sum(spent.get("update", [])),
            "host_calls": [{"name": span.name, "seconds": span.end - span.start} for span in self._host],
        }

    def _events(self) -> List[Dict[str, Any]]:
        spans = [*self._host, *self._device]
        origin = min((span.start for span in spans), default=0.0)
        events: List[Dict[str, Any]] = []
        rows: Dict[Any, int] = {}
        for span in spans:
            row = rows.setdefault((span.process, span.row), len(rows))
            events.append(
                {
                    "name": span.name,
                    "cat": span.row,
                    "ph": "X",
                    "ts": (span.start - origin) * 1e6,
                    "dur": (span.end - span.start) * 1e6,
                    "pid": span.process,
                    "tid": row,
                    "args": span.about,
                }
            )
        for process in {span.process for span in spans}:
            name = "Host" if process == _HOST else f"IPU {process - 1}"
            events.append({"name": "process_name", "ph": "M", "pid": process, "args": {"name": name}})
        for (process, row), number in rows.items():
            events.append({"name": "thread_name", "ph": "M", "pid": process, "tid": number, "args": {"name": row}})
        return events


class Reported(Protocol):
    """A program, as far as a report tells of it."""

    graph: Graph
    batching: Batching
    placement: Placement
    ipus: int

    def memory(self) -> Dict[str, int]:
        """Return how many bytes the device holds of what kind."""


class _TimedGraph:
    """A program's graph with a clock around each operator, and around each step of its way back."""

    def __init__(self, program: Reported, spans: List[Span]) -> None:
        self._spans = spans
        self._program = program
        self._micro_batch = -1
        self._seen: Set[Any] = set()
        graph = program.graph
        names = dict(getattr(graph.run, "__globals__", {}))
        nodes = {node.name: node for node in graph.nodes.nodes}
        # Each operator is called through a name of its own in the generated text.
        for node_name, kernel_name in _CALL.findall(graph.source):
            names[kernel_name] = self._timed(nodes[node_name], names[kernel_name])
        exec(compile(graph.source, "<timed graph>", "exec"), names)  # the text that the compiler made
        self._run = names["run"]

    def run(self, *arguments: Any) -> Any:
        """Run one micro-batch; the replicas take turns."""
        self._micro_batch += 1
        self._seen.clear()
        return self._run(*arguments)

    def around(self, name: str, function: Callable[..., None]) -> Callable[..., None]:
        """Return `function`, a part of the training step, with a clock around it."""

        @functools.wraps(function)
        def timed(*arguments: Any) -> None:
            start = time.perf_counter()
            function(*arguments)
            self._spans.append(Span(name, start, time.perf_counter(), self._process(0), name))

        return timed

    def _timed(self, node: fx.Node, kernel: Callable[..., Any]) -> Callable[..., Any]:
        if "operator" not in node.meta:
            return kernel
        site = node.meta["site"]
        row = f"phase {site.phase}" if site.stage < 0 else f"stage {site.stage}"
        about = {"node": node.name, "block": site.block, "scope": node.meta["scope"], "source": node.meta["source"]}

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            result = kernel(*args, **kwargs)
            end = time.perf_counter()
            process = self._process(max(site.ipu, 0))
            facts = {**about, "micro_batch": self._micro_batch}
            name = node.meta["operator"]
            self._spans.append(Span(name, start, end, process, row, facts))
            backward = functools.partial(
                Span,
                f"{name} {_BACKWARD}",
                process=process,
                row=f"{row} {_BACKWARD}",
                about={**facts, "pass": _BACKWARD},
            )
            for step in self._new_steps((args, result)):
                self._time_backward(step, backward)
            return result

        return timed

    def _new_steps(self, values: Any) -> List[Any]:
        """Return what autograd has recorded since the last operator of this micro-batch: its way back."""
        found: List[Any] = []
        pending = [value.grad_fn for value in leaves(values) if isinstance(value, torch.Tensor)]
        while pending:
            step = pending.pop()
            # Gradients that have reached their weights are added up by the training step.
            if step is None or step in self._seen or step.name().endswith("AccumulateGrad"):
                continue
            self._seen.add(step)
            found.append(step)
            pending += [earlier for earlier, _ in step.next_functions]
        return found

    def _time_backward(self, step: Any, span: Callable[..., Span]) -> None:
        started: List[float] = []

        def before(gradients: Any) -> None:
            started.append(time.perf_counter())

        def after(gradients: Any, incoming: Any) -> None:
            self._spans.append(span(start=started.pop(), end=time.perf_counter()))

        step.register_prehook(before)
        step.register_hook(after)

    def _process(self, ipu: int) -> int:
        replicas = self._program.batching.replication_factor
        replica = max(self._micro_batch, 0) % replicas
        return 1 + replica * self._program.placement.ipus_per_replica + ipu
