"""Cost of imports and of the command line, in processor time of processes of their own.

The limit of `ignite_ipu.auto` is the import of the packages in which it replaces names, and one look at all objects of
the process. Beyond that are its own modules. They make so many objects that Python's collector goes through all of the
process once more, for a third of the cost.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
from typing import Callable, Iterator

from tests.benchmarks.measures import Measure, ratio, seconds

_PYTORCH_AND_IGNITE = "import torch, ignite.engine"


def measures() -> Iterator[Measure]:
    """Yield the rows of the table."""
    # It replaces names of both, which the program may import at any time, and captures the models that there are.
    look = "{torch.nn.Module}.isdisjoint(map(type, gc.get_objects()))"
    least = importing(f"{_PYTORCH_AND_IGNITE}, accelerate, torch.onnx, gc; {look}")
    ours, theirs = importing(f"{_PYTORCH_AND_IGNITE}, ignite_ipu.auto"), importing(_PYTORCH_AND_IGNITE)
    name = "import with ignite_ipu.auto / import torch, ignite"
    yield ratio(name, ours, theirs, 1.05, pairs=3, clock=of_children, least=least)
    shown = [seconds(running("-m", "ignite_ipu", "--help"), of_children) for _ in range(5)]
    nothing = [seconds(importing("pass"), of_children) for _ in range(5)]
    added = statistics.median(shown) - statistics.median(nothing)
    each = " / ".join(f"{1e3 * statistics.median(side):.3g}" for side in (shown, nothing))
    yield Measure("ignite-ipu --help, longer than python -c pass", added, 0.2, "s", f"{each} ms")


def more() -> Iterator[Measure]:
    """Yield a further row."""
    ours, theirs = (
        importing("import ignite.engine, ignite_ipu; ignite_ipu.create_ipu_trainer"),
        importing("import ignite.engine"),
    )
    yield ratio("import ignite with factories / import ignite", ours, theirs, 1.03, pairs=7, clock=of_children)


def importing(code: str) -> Callable[[], object]:
    """Return a function that runs code in a process of its own."""
    return running("-c", code)


def running(*words: str) -> Callable[[], object]:
    """Return a function that runs Python with arguments, with cached bytecode as an installed package has it."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return lambda: subprocess.run([sys.executable, *words], check=True, env=environment, capture_output=True)


def of_children() -> float:
    """Return the processor seconds of the processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
