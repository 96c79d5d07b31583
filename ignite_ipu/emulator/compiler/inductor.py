"""Optional: the device work of a program, compiled by torch.compile's back end, for long runs.

`compile_steps()` or `IGNITE_IPU_EMULATOR_COMPILE=inductor` switches it on. It needs a C++ compiler and takes seconds to
minutes a program, in a thread of its own. Meanwhile the program runs by PyTorch's own operators. Then compiled code
takes over, which is logged at level INFO. From there results differ by rounding, as the kernels are fused. inductor
keeps its results on disk (`TORCHINDUCTOR_CACHE_DIR`), by graph, options and versions, for the runs to come.

A micro-batch's forward and backward passes become one function (`CompiledStep`), and so does an inference graph. They
are traced once on stand-ins without values, down to PyTorch's kernels. inductor gets them without the guards that
torch.compile puts around unknown code. A program that cannot be traced so, because it reads values or acts on the host,
stays with PyTorch's own operators.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import threading
import time
from typing import Callable, Iterator, List, Optional, Sequence, Set, Tuple

import torch
from torch import fx

from ignite_ipu.emulator.compiler import saved_values
from ignite_ipu.emulator.compiler.graph import Graph, on_the_host
from ignite_ipu.emulator.errors import backend_error
from ignite_ipu.emulator.logs import logger
from ignite_ipu.torch_names.files import inductor
from ignite_ipu.torch_names.tensors import memory_of

VARIABLE = "IGNITE_IPU_EMULATOR_COMPILE"
_CHOICES = ("", "0", "inductor")
_COMPILERS = ("c++", "g++", "clang++")
# Random numbers must come from the device's stream, not from inductor's own generator. A C++ wrapper calls the kernels
# in a fraction of the time that Python takes.
_OPTIONS = {"fallback_random": True, "cpp_wrapper": True}

Run = Callable[..., Tuple[torch.Tensor, ...]]
Tensors = Sequence[torch.Tensor]

_is_on = False
_one_at_a_time = threading.Lock()
_under_way: Set[threading.Thread] = set()


def compile_steps(enabled: bool = True) -> None:
    """Have the programs that are compiled from now on sped up by torch.compile's back end, as the variable does.

    Raises:
        Error: There is no C++ compiler.
    """
    global _is_on
    if enabled:
        _need_compiler("compile_steps()")
    _is_on = enabled


def wanted() -> bool:
    """Return whether programs are to be compiled.

    Raises:
        Error: The variable holds something else than one of its values, or there is no C++ compiler.
    """
    choice = os.environ.get(VARIABLE, "")
    if choice not in _CHOICES:
        raise backend_error(f'{VARIABLE} must be "inductor", or unset for PyTorch\'s own operators; got {choice!r}.')
    if choice == "inductor":
        _need_compiler(f"{VARIABLE}=inductor")
    return _is_on or choice == "inductor"


def wait() -> None:
    """Return when everything that is being compiled has been."""
    for thread in list(_under_way):
        thread.join()


def _need_compiler(what: str) -> None:
    if not os.environ.get("CXX") and not any(shutil.which(name) for name in _COMPILERS):
        raise backend_error(
            f"{what} needs a C++ compiler, and none of {', '.join(_COMPILERS)} is there. Install one, name it in CXX, "
            "or leave the programs to PyTorch's own operators."
        )


@dataclasses.dataclass
class Compiled:
    """A function that is compiled in a thread of its own when it is first asked for; the log calls it `name`.

    `run` is None as long as it is being compiled, or if it cannot be.
    """

    name: str
    run: Optional[Run] = None
    is_begun: bool = False
    used: Tuple[bool, ...] = ()  # of a training step: whether the loss depends on each trainable weight

    def begin(self, graph: Graph, functions: Sequence[Callable[..., Sequence[torch.Tensor]]], given: Tensors) -> None:
        """Trace the first of some functions that can be traced, and have it compiled.

        The `graph` that they run must hold computations only, all of them visible to the trace; they may write to
        `given`.
        """
        self.is_begun = True
        found = on_the_host(graph.nodes)
        if found:
            self._leave(f"{found[0].meta.get('operator', found[0].name)} runs on the host")
            return
        # Memory of their own: a tensor that is passed twice now may be two next time.
        examples = [
            torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
            for value in map(torch.Tensor.detach, given)
        ]
        with self._left_alone():
            module = _traced(functions, examples)
            _in_background(lambda: self._lower(module, examples))

    def _lower(self, module: fx.GraphModule, examples: List[torch.Tensor]) -> None:
        started = time.perf_counter()
        with self._left_alone(), _one_at_a_time, torch.no_grad():
            self.run = lowered(module, examples)
            seconds = time.perf_counter() - started
            logger.info("torch.compile compiled %s in %.1f s; it runs compiled from here on.", self.name, seconds)

    @contextlib.contextmanager
    def _left_alone(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever PyTorch's tracer and compilers say
            self._leave(error)

    def _leave(self, reason: object) -> None:
        if not threading.main_thread().is_alive():  # the process has ended, which is all that ails the compiler
            return
        first_line, *_ = str(reason).strip().splitlines() or ["no reason given"]
        kind = f"{type(reason).__name__}: " if isinstance(reason, Exception) else ""
        logger.info("%s cannot be compiled: %s%s. It runs by PyTorch's own operators.", self.name, kind, first_line)


def compiled(graph: Graph, name: str) -> Graph:
    """Return the graph of the inference program `name` with a function that is compiled while it runs."""
    whole = Compiled(name)

    def run(*arguments: torch.Tensor) -> Tuple[torch.Tensor, ...]:
        if not whole.is_begun:
            whole.begin(graph, [lambda *given: own_memory(graph.run(*given), given)], arguments)
        return (whole.run or graph.run)(*arguments)

    return dataclasses.replace(graph, run=run)


def _traced(functions: Sequence[Callable[..., Sequence[torch.Tensor]]], examples: Tensors) -> fx.GraphModule:
    from torch.fx.experimental.proxy_tensor import make_fx

    first, *others = functions
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            return make_fx(lambda *given: tuple(first(*given)), tracing_mode="fake")(*examples)
    except Exception as error:
        if others and saved_values.were_overwritten(error):
            return _traced(others, examples)
        raise


def _in_background(work: Callable[[], None]) -> None:
    def run() -> None:
        try:
            work()
        finally:
            _under_way.discard(thread)

    # A process ends when it has; inductor cannot be cut off.
    thread = threading.Thread(target=run, name="torch.compile")
    _under_way.add(thread)
    thread.start()


def lowered(module: fx.GraphModule, examples: List[torch.Tensor]) -> Run:
    """Return inductor's function for a graph of PyTorch's kernels."""
    function: Run = inductor()(module, list(examples), options=_OPTIONS)
    return function


def own_memory(results: Tensors, given: Tensors) -> List[torch.Tensor]:
    """Return results, copied if they share memory with the arguments and would change with them."""
    taken = {memory_of(value) for value in given}
    return [value.detach().clone() if memory_of(value) in taken else value.detach() for value in results]
