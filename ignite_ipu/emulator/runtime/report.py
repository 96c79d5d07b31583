"""The automatic report: a profile of one run in JSON, and a timeline that chrome://tracing and Perfetto open.

It is written when the engine options ask for it, as `Options.enableProfiling` or POPLAR_ENGINE_OPTIONS do, into a
directory named after the model. Times are the host's: they show the work of the program, not the speed of an IPU.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from torch import fx

from ignite_ipu.emulator.device.device import Counters
from ignite_ipu.emulator.errors import backend_error
from ignite_ipu.emulator.logs import logger
from ignite_ipu.emulator.runtime.compilation import CompiledModel
from ignite_ipu.emulator.runtime.executable import Executable
from ignite_ipu.emulator.runtime.training_step import GradientStep
from ignite_ipu.emulator.version import __version__

ENGINE_VARIABLE = "POPLAR_ENGINE_OPTIONS"
PROFILE, TIMELINE = "profile.json", "timeline.json"
_MOST_HOST_CALLS = 10_000
_HOST = 0
_PARTS = ("backward", "update")
_CALL = re.compile(r"^    (\w+) = (_\d+)\(", re.M)


def report_for(compiled: CompiledModel) -> Optional[ProgramReport]:
    """Return the report that the engine's options ask for, which the environment overrides; None if they do not."""
    chosen = dict(compiled.options._Popart._value("engineOptions", {}))
    text = os.environ.get(ENGINE_VARIABLE)
    try:
        chosen.update({str(name): str(value) for name, value in json.loads(text or "{}").items()})
    except (ValueError, AttributeError):
        raise backend_error(
            f'{ENGINE_VARIABLE} must be a JSON object such as {{"autoReport.all": "true"}}, got {text!r}.'
        ) from None
    if not any(name.startswith("autoReport.") and value.lower() == "true" for name, value in chosen.items()):
        return None
    return ProgramReport(os.path.join(chosen.get("autoReport.directory", "."), compiled.name), chosen, compiled)


class ProgramReport:
    """Notes on one executor's program, for its files in `directory`; `chosen` are the engine options in force."""

    def __init__(self, directory: str, chosen: Dict[str, str], compiled: CompiledModel) -> None:
        self.directory = directory
        self._chosen = chosen
        self._compiled = compiled
        self._events: List[Dict[str, Any]] = []
        self._rows: Dict[Tuple[int, str], int] = {}
        self._host_calls = 0
        self._profiled = self._written = False

    def add(self, name: str, start: float, process: int = _HOST, row: str = "calls", **facts: Any) -> None:
        """Note something that is over now, and began at `start`, in seconds of `time.perf_counter`.

        The process is 0 for the host, else 1 + the IPU, counted over all replicas.
        """
        duration = time.perf_counter() - start
        line = self._rows.setdefault((process, row), len(self._rows))
        event = {"name": name, "cat": row, "ph": "X", "ts": start * 1e6, "dur": duration * 1e6, "pid": process}
        self._events.append({**event, "tid": line, "args": facts})

    @contextlib.contextmanager
    def host_call(self, name: str) -> Iterator[None]:
        """Note how long the `with` block takes, as a call of the host."""
        start = time.perf_counter()
        try:
            yield
        finally:
            if self._host_calls < _MOST_HOST_CALLS:
                self._host_calls += 1
                self.add(name, start)

    @property
    def is_due(self) -> bool:
        """True once a run was profiled that is in no file yet."""
        return self._profiled and not self._written

    @contextlib.contextmanager
    def profiled(self, executable: Executable, step: Optional[GradientStep]) -> Iterator[None]:
        """Time each operator of the run in the `with` block, if it is the program's first."""
        if self._profiled:
            yield
            return
        self._profiled = True
        graph = executable.graph
        executable.graph = dataclasses.replace(graph, run=_timed_run(self._compiled, self))
        parts = () if step is None else _PARTS
        for part in parts:
            # Instance attributes hide the methods until they are deleted again.
            setattr(step, part, self._timed(part, getattr(step, part), self._compiled.placement.ipus_per_replica))
        try:
            yield
        finally:
            executable.graph = graph
            for part in parts:
                delattr(step, part)

    def write(self, memory: Dict[str, int], counters: Counters, seconds: float) -> None:
        """Write both files, in the place of earlier ones.

        Args:
            memory: The bytes that the device holds, by kind.
            counters: The events of the executor.
            seconds: The time of the compilation.
        """
        self._written = True
        try:
            os.makedirs(self.directory, exist_ok=True)
            timeline = {"traceEvents": [*self._events, *self._names()], "displayTimeUnit": "ms"}
            for name, content in ((PROFILE, self._profile(memory, counters, seconds)), (TIMELINE, timeline)):
                with open(os.path.join(self.directory, name), "w", encoding="utf-8") as file:
                    json.dump(content, file, indent=1, default=str)
        except OSError as error:
            logger.warning("The report could not be written to %s: %s.", self.directory, error)

    def _timed(self, part: str, function: Callable[..., None], ipus_per_replica: int) -> Callable[..., None]:
        def timed(*arguments: Any) -> None:
            start = time.perf_counter()
            function(*arguments)
            replica = arguments[1] if part == "backward" else 0
            self.add(part, start, 1 + replica * ipus_per_replica, part)

        return timed

    def _profile(self, memory: Dict[str, int], counters: Counters, seconds: float) -> Dict[str, Any]:
        spent: Dict[Optional[str], List[float]] = {}
        for event in self._events:
            spent.setdefault(event["args"].get("node"), []).append(event["dur"] / 1e6)
        operators = [
            {
                "node": node.name,
                "operator": node.meta["operator"],
                **node.meta["site"]._asdict(),
                **{name: node.meta.get(name) for name in ("scope", "source", "shape", "dtype")},
                "runs": len(spent[node.name]),
                "seconds": sum(spent[node.name]),
            }
            for node in self._compiled.graph.nodes.nodes
            if node.name in spent
        ]
        return {
            "note": "Made by the emulator: times are those of the host's CPU.",
            "version": __version__,
            "compile_seconds": seconds,
            "ipus": self._compiled.ipus,
            "batching": dataclasses.asdict(self._compiled.batching),
            "engine_options": self._chosen,
            "memory_bytes": memory,
            "counters": dataclasses.asdict(counters),
            "operators": operators,
            **{
                f"{part}_seconds": sum(event["dur"] for event in self._events if event["cat"] == part) / 1e6
                for part in _PARTS
            },
            "host_calls": [
                {"name": event["name"], "seconds": event["dur"] / 1e6}
                for event in self._events
                if event["pid"] == _HOST
            ],
        }

    def _names(self) -> Iterator[Dict[str, Any]]:
        for process in {process for process, _ in self._rows}:
            name = "Host" if process == _HOST else f"IPU {process - 1}"
            yield {"name": "process_name", "ph": "M", "pid": process, "args": {"name": name}}
        for (process, row), number in self._rows.items():
            yield {"name": "thread_name", "ph": "M", "pid": process, "tid": number, "args": {"name": row}}


def _timed_run(compiled: CompiledModel, report: ProgramReport) -> Callable[..., Any]:
    """Return a runner of a program's graph with a clock around each operator; the replicas take turns."""
    graph = compiled.graph
    names: Dict[str, Any] = dict(graph.run.__globals__)
    nodes = {node.name: node for node in graph.nodes.nodes}
    micro_batch = -1

    def timed(node: fx.Node, kernel: Callable[..., Any]) -> Callable[..., Any]:
        site = node.meta["site"]
        row = f"phase {site.phase}" if site.stage < 0 else f"stage {site.stage}"
        facts = {"node": node.name, "block": site.block, "scope": node.meta["scope"], "source": node.meta["source"]}

        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            result = kernel(*args, **kwargs)
            replica = micro_batch % compiled.batching.replication_factor
            process = 1 + replica * compiled.placement.ipus_per_replica + max(site.ipu, 0)
            report.add(node.meta["operator"], start, process, row, **facts, micro_batch=micro_batch)
            return result

        return call

    # Each operator is called through a name of its own in the generated text.
    for node_name, kernel_name in _CALL.findall(graph.source):
        if "operator" in nodes[node_name].meta:
            names[kernel_name] = timed(nodes[node_name], names[kernel_name])
    exec(compile(graph.source, "<timed graph>", "exec"), names)  # the text that the compiler made

    def run(*arguments: Any) -> Any:
        nonlocal micro_batch
        micro_batch += 1
        return names["run"](*arguments)

    return run
