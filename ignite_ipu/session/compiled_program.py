"""`CompiledProgram`: the state of a program that is compiled, and the detection of stale ones."""

from __future__ import annotations

import dataclasses
from typing import Any, Collection, Hashable, List, Mapping, Sequence, Tuple

import torch
from torch import nn

from ignite_ipu.errors import SessionError
from ignite_ipu.poptorch_types import Executor
from ignite_ipu.program.forward.integer_buffers import counts_on_host
from ignite_ipu.program.forward.module_attributes import ModuleAttributes
from ignite_ipu.program.geometry import BatchGeometry
from ignite_ipu.program.guards.python_state import PythonState
from ignite_ipu.program.guards.retrace import MOST_CALLS, Retrace
from ignite_ipu.program.module_state import modes_kept
from ignite_ipu.program.step import BatchStep
from ignite_ipu.program.tensors.raw import dtype_of, named_tensors, plain, shape_of, tensors_of
from ignite_ipu.program.user_code import is_users_file
from ignite_ipu.session.executables import ExportedProgram, PathLike, export
from ignite_ipu.session.program_source import ProgramSource
from ignite_ipu.session.weights.batch_counters import Counted
from ignite_ipu.torch_names.modules import BUFFERS, PARAMETERS, all_named_modules
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass


@dataclasses.dataclass(frozen=True)
class HostTrace:
    """Results of the call on the host that follows a compilation.

    Attributes:
        retrace: Compares later calls with it.
        counted: Counters of batches, and by how much a micro-batch advances each.
        written: Names of the floating-point buffers that forward writes, without the statistics of normalisations.
        varying: Names of values that every call changes, or finds changed.
        shapes: Sizes and strides of the returned tensors; empty where the model cannot be called on the host.
        writes_buffers: Whether calls may write floating-point buffers.
    """

    retrace: Retrace
    counted: Counted
    written: Sequence[str] = ()
    varying: Sequence[str] = ()
    shapes: Sequence[Tuple[Sequence[int], Sequence[int]]] = ()
    writes_buffers: bool = True


class CompiledProgram:
    """A program that is compiled, with the Python values and buffers that are its constants.

    PopTorch reports whether it is on its IPUs.

    Args:
        source: The parts that it was made from.
        executor: PopTorch's executor.
        geometry: The arithmetic of its calls.
        python: The Python values of the trace.
        changed: Names of Python values that forward changed in the trace, as each trace of the model does.
        trace: Results of a call on the host.

    Attributes:
        calls: Calls of the program since the last look for another result of its code.
        is_due: Whether there is to be a look before the next call.
        buffers: The names and tensors of buffers that are constants of the program, with their values there.
    """

    def __init__(
        self,
        source: ProgramSource,
        executor: Executor,
        geometry: BatchGeometry,
        python: PythonState,
        changed: Sequence[str],
        trace: HostTrace,
    ) -> None:
        self.source, self.executor, self.geometry, self.trace = source, executor, geometry, trace
        self._step, self._training = source.step, source.resolved.training
        self._python, self._changed = python, changed
        self.calls = self._looks = 0
        self.is_due = False
        self._traced: List[Hashable] = self._python.values()
        modules = all_named_modules(self._step)
        self._traced_modes = [module.training for _, module in modules]
        self._modes: List[bool] = []
        self._formats = _formats_of(tensors_of(modules))
        self._weights, self._edits = source.weights, source.weights.detector.edits
        self.buffers = _compiled_in(modules, self._step, self._python.words)
        # Buffers of floating-point numbers may be written by the program that trains.
        floats = any(plain(tensor).is_floating_point() for _, tensor, _ in self.buffers)
        self._follows_training = floats and not self._training

    def set_modes(self) -> None:
        """Put the user's model in its mode; calls none of its code where no module's mode has changed since."""
        if self._python.training() is not self._modes:
            self._step.train(self._training)
            self._modes = self._python.training()

    def count_batches(self) -> None:
        """Advance the counters of batches with this program's calls from now on."""
        self._weights.host.counters.follow(self.trace.counted, self.source.resolved.micro_batches_per_replica)

    def take(self, executable: ExportedProgram) -> None:
        """Refuse to load an executable.

        Raises:
            SessionError: The program is compiled.
        """
        raise SessionError(
            f"{executable.path} comes too late: the program is compiled already. Load it before the first batch, "
            "or call trainer.ipu.release() first."
        )

    def export(self, path: PathLike) -> None:
        """Write the program to a file; see `ExportedProgram`."""
        export(path, self.executor, self._step, self.source.kind.link, self.trace.retrace.fingerprint())

    def place(self, *parts: Any) -> None:
        """Leave the placement as it was compiled."""

    def changed_values(self) -> List[str]:
        """Return the names of Python values that were others when the program was traced; modules and hooks, too."""
        attributes = self._python
        if not attributes.complete:
            known, before = attributes, dict(zip(attributes.names, self._traced))
            attributes = self._step.python_state()
            if attributes.parts != known.parts:
                return [f"modules or hooks{known.within}"]
            self._python = attributes
            self._traced = [before.get(name) for name in attributes.names]
        now = attributes.values()
        if now is self._traced or now == self._traced:
            return []
        return [name for name in attributes.changed(self._traced) if name not in self._changed]

    @property
    def _is_behind(self) -> bool:
        """True if integers are constants here that another program writes, as it is known by now."""
        written = self._weights.integers
        return bool(written) and any(id(tensor) in written for _, tensor, _ in self.buffers)

    def changed_buffers(self) -> List[str]:
        """Return the names of buffers that have other values now; looks at them only if they may have been written."""
        follows = self._follows_training or self._is_behind
        if follows and not self._training:
            self._weights.to_host()
        edits = self._weights.detector.edits
        if edits == self._edits and not follows:
            return []
        names = [name for name, tensor, value in self.buffers if not torch.equal(plain(tensor), value)]
        if not names:
            self._edits = edits
        return names

    @property
    def is_worth_a_look(self) -> bool:
        """True if there were enough calls for a look that others ask for, however often: looks become rarer."""
        return self.calls > min(self._looks, MOST_CALLS)

    def computed_otherwise(self) -> str:
        """Return in words the differences of a call on the host from the compiled one; empty for none.

        Values that code names are left to `changed_values`, and buffers that programs write to `changed_buffers`. A
        module whose tensors have other shapes or types by now, as after `model.double()`, computes something else, for
        which its next call compiles another program.
        """
        if self.changed_values() or self._is_behind or _formats_of(named_tensors(self._step)) != self._formats:
            return ""
        kept = ModuleAttributes(self._step)
        self.calls, self.is_due = 0, False
        self._looks += 1
        with modes_kept(self._step, self._traced_modes):
            found = self.trace.retrace.again()
        kept.put_back(always=True)
        return found


def _formats_of(tensors: Mapping[str, torch.Tensor]) -> List[Tuple[torch.dtype, Sequence[int]]]:
    """Return the types and shapes of a module's parameters and buffers."""
    with DisableTorchFunctionSubclass():
        return [(dtype_of(tensor), shape_of(tensor)) for tensor in tensors.values()]


def _compiled_in(
    modules: Sequence[Tuple[str, nn.Module]], step: BatchStep, words: Collection[str]
) -> List[Tuple[str, torch.Tensor, torch.Tensor]]:
    """Return the buffers that are constants of a step's program, with their values.

    PopTorch compiles integers and booleans in, so writes on the host never reach it: an index that is permuted, a
    mask, a table. The names in the code decide which count. Those that the step carries are none, unless the code has
    read the value to decide by it, as a flag. So it may do with any buffer.
    """
    found: List[Tuple[str, torch.Tensor, torch.Tensor]] = []
    carried, read = step.integers, step.shown.read
    with DisableTorchFunctionSubclass():
        for path, module in modules:
            for kind in (BUFFERS, PARAMETERS):
                for name, tensor in module.__dict__[kind].items():
                    if tensor is None:
                        continue
                    place = f"{path}.{name}" if path else name
                    whole = not dtype_of(tensor).is_floating_point and tensor not in carried
                    if (whole and _is_used(module, name, words)) or place in read:
                        found.append((place, tensor, plain(tensor).clone()))
    return found


def _is_used(module: nn.Module, name: str, words: Collection[str]) -> bool:
    """Return whether a program may depend on a buffer."""
    if counts_on_host(module, name):
        return False
    code = getattr(type(module).forward, "__code__", None)
    return code is None or not is_users_file(code.co_filename) or name in words
