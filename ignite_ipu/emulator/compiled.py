"""Optional: a graph's function compiled by torch.compile, for long runs on a host with a C++ compiler.

Set `IGNITE_IPU_EMULATOR_COMPILE=inductor` to have it. Compiling takes seconds to minutes, in the first run of each
program; the log says how long at level INFO. Results then differ from PyTorch's own operators by rounding, as the
kernels are fused.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from typing import Any, Callable, Tuple

import torch

from ignite_ipu.emulator.errors import backend_error
from ignite_ipu.emulator.graph import Graph
from ignite_ipu.emulator.logs import logger

VARIABLE = "IGNITE_IPU_EMULATOR_COMPILE"
_CHOICES = ("", "0", "inductor")
_COMPILERS = ("c++", "g++", "clang++")

Run = Callable[..., Tuple[torch.Tensor, ...]]


def wanted() -> bool:
    """Tell whether graphs are to be compiled by torch.compile.

    Raises:
        Error: The variable holds something else than one of its values, or there is no C++ compiler.
    """
    choice = os.environ.get(VARIABLE, "")
    if choice not in _CHOICES:
        raise backend_error(f'{VARIABLE} must be "inductor", or unset for PyTorch\'s own operators; got {choice!r}.')
    if choice != "inductor":
        return False
    if not os.environ.get("CXX") and not any(shutil.which(name) for name in _COMPILERS):
        raise backend_error(
            f"{VARIABLE}=inductor needs a C++ compiler, and none of {', '.join(_COMPILERS)} is there. Install one, "
            "name it in CXX, or unset the variable."
        )
    return True


def compiled(graph: Graph, name: str) -> Graph:
    """Return the graph with a function that torch.compile compiles when it first runs.

    Args:
        name: What the log calls the program.
    """
    # The random numbers must come from the device's stream, not from inductor's generator.
    run = torch.compile(graph.run, dynamic=False, options={"fallback_random": True})
    return dataclasses.replace(graph, run=_logged(run, name))


def _logged(run: Run, name: str) -> Run:
    """Return `run`, whose first call also says how long it took."""
    first = True

    def timed(*arguments: Any) -> Tuple[torch.Tensor, ...]:
        nonlocal first
        if not first:
            return run(*arguments)
        first = False
        started = time.perf_counter()
        results = run(*arguments)
        logger.info("torch.compile compiled %s in %.1f s.", name, time.perf_counter() - started)
        return results

    return timed
