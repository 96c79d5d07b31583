"""Optional: what a program runs on the device, compiled by torch.compile's back end, for long runs.

Set `IGNITE_IPU_EMULATOR_COMPILE=inductor` to have it. It needs a C++ compiler and takes seconds to minutes, in the
first run of each program; the log says so at level INFO. Results then differ from PyTorch's own operators by
rounding, as the kernels are fused.

A micro-batch's forward and backward passes become one function (`compiled_step`), an inference graph likewise: they are
traced once on stand-ins without values, down to PyTorch's kernels, and handed to inductor without the guards that
torch.compile puts around code that it knows nothing of. What cannot be traced so, because it asks for values or acts on
the host, runs by PyTorch's own operators.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from typing import Callable, List, Optional, Sequence, Tuple

import torch
from torch import fx

from ignite_ipu.emulator.compiler.graph import Graph, on_the_host
from ignite_ipu.emulator.errors import backend_error
from ignite_ipu.emulator.logs import logger

VARIABLE = "IGNITE_IPU_EMULATOR_COMPILE"
_CHOICES = ("", "0", "inductor")
_COMPILERS = ("c++", "g++", "clang++")
# Random numbers must come from the device's stream, not from inductor's own generator. A C++ wrapper calls the kernels
# in a fraction of the time that Python takes.
_OPTIONS = {"fallback_random": True, "cpp_wrapper": True}

Run = Callable[..., Tuple[torch.Tensor, ...]]
Tensors = Sequence[torch.Tensor]


class Untraceable(Exception):
    """A function cannot be compiled as a whole; the text says why."""


def wanted() -> bool:
    """Tell whether programs are to be compiled.

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
    """Return the graph of an inference program with a function that is compiled when it first runs.

    Args:
        name: What the log calls the program.
    """
    function: Optional[Run] = None

    def run(*arguments: torch.Tensor) -> Tuple[torch.Tensor, ...]:
        nonlocal function
        if function is None:
            try:
                check_kernels(graph)
                function = whole(lambda *given: own_memory(graph.run(*given), given), arguments, name)
            except Untraceable as reason:
                function = graph.run
                left_alone(name, reason)
        return function(*arguments)

    return dataclasses.replace(graph, run=run)


def left_alone(name: str, reason: Untraceable) -> None:
    """Say why a program is not compiled."""
    logger.info("%s cannot be compiled: %s. It runs by PyTorch's own operators.", name, reason)


def check_kernels(graph: Graph) -> None:
    """Make sure that the graph's operators are computations alone, which a trace shows in full.

    Raises:
        Untraceable: One of them is code of the user's or acts on the host.
    """
    found = on_the_host(graph.nodes)
    if found:
        raise Untraceable(f"{found[0].meta.get('operator', found[0].name)} runs on the host")


def whole(function: Callable[..., Sequence[torch.Tensor]], arguments: Tensors, name: str) -> Run:
    """Return `function` as one compiled function of tensors shaped like `arguments`; it may write to them.

    Args:
        name: What the log calls it.

    Raises:
        Untraceable: It asks for the values of tensors, or inductor cannot compile it.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    started = time.perf_counter()
    # Memory of their own: a tensor that is passed twice now may be two next time.
    examples = [
        torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
        for value in map(torch.Tensor.detach, arguments)
    ]
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            run = lowered(make_fx(lambda *given: tuple(function(*given)), tracing_mode="fake")(*examples), examples)
    except Untraceable:
        raise
    except Exception as error:  # whatever PyTorch's compilers say
        first_line, *_ = str(error).strip().splitlines() or ["no reason given"]
        raise Untraceable(f"{type(error).__name__}: {first_line}") from error
    logger.info("torch.compile compiled %s in %.1f s.", name, time.perf_counter() - started)
    return run


def lowered(module: fx.GraphModule, examples: List[torch.Tensor]) -> Run:
    """Return inductor's function for a graph of PyTorch's kernels."""
    from torch import _inductor

    function: Run = _inductor.compile(module, list(examples), options=_OPTIONS)
    return function


def own_memory(results: Tensors, given: Tensors) -> List[torch.Tensor]:
    """Return results, copied where they share memory with what was given and would change with it."""
    taken = {value.untyped_storage()._cdata for value in given}
    return [value.detach().clone() if value.untyped_storage()._cdata in taken else value.detach() for value in results]
