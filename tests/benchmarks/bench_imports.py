"""Cost of importing the factories for programs that import Ignite."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from typing import Callable, Iterator

from tests.benchmarks.measures import Measure, ratio


def measures() -> Iterator[Measure]:
    """Yield the row of the table."""
    ours, theirs = (
        importing("import ignite.engine, ignite_ipu; ignite_ipu.create_ipu_trainer"),
        importing("import ignite.engine"),
    )
    yield ratio("import ignite with factories / import ignite", ours, theirs, 1.03, pairs=7, clock=of_children)


def importing(code: str) -> Callable[[], object]:
    """Run code in a process of its own, with cached bytecode as an installed package has it."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return lambda: subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def of_children() -> float:
    """Return the processor seconds of the processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
