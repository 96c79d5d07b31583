"""`CompiledProgram`: what PopTorch has made of a program's module, and when that is stale."""

from __future__ import annotations

from typing import Hashable, List, Sequence

from ignite_ipu.poptorch_types import Executor
from ignite_ipu.program.forward.module_attributes import ModuleAttributes
from ignite_ipu.program.guards.python_state import PythonState
from ignite_ipu.program.guards.retrace import Retrace
from ignite_ipu.program.module_state import modes_kept, modes_of
from ignite_ipu.program.step import BatchStep
from ignite_ipu.session.weights.compiled_buffers import CompiledBuffers
from ignite_ipu.session.weights.tracker import Weights

__all__ = ["CompiledProgram"]


class CompiledProgram:
    """An executor with a program in it, and what of Python and of buffers that program has as constants.

    Args:
        python: Values that the code of a call names.
        changed: Names of Python values that forward changed in the trace, as each trace of the model would again.

    Attributes:
        constants: What the program has of buffers as constants.
        retrace: Finds out whether a call on the host still computes the same.
    """

    def __init__(
        self,
        executor: Executor,
        step: BatchStep,
        training: bool,
        weights: Weights,
        python: PythonState,
        changed: Sequence[str],
        retrace: Retrace,
    ) -> None:
        self.executor = executor
        self.retrace = retrace
        self._step, self._training, self._python, self._changed = step, training, python, changed
        self._traced: List[Hashable] = self._python.values()
        self._traced_modes = modes_of(step)
        self._modes: List[bool] = []
        self.constants = CompiledBuffers(step, self._python.words, weights)

    def set_modes(self) -> None:
        """Put the user's model in its mode; calls none of its code where no module's mode has changed since."""
        if self._python.training() is not self._modes:
            self._step.train(self._training)
            self._modes = self._python.training()

    def changed_values(self) -> List[str]:
        """Return the names of Python values that were others when the program was traced; modules and hooks, too."""
        attributes = self._python
        if not attributes.complete:
            known, before = attributes, dict(zip(attributes.names, self._traced))
            attributes = self._python = self._step.python_state()
            if attributes.parts != known.parts:
                return ["modules or hooks"]
            self._traced = [before.get(name) for name in attributes.names]
        now = attributes.values()
        if now is self._traced or now == self._traced:
            return []
        return [name for name in attributes.changed(self._traced) if name not in self._changed]

    def computed_otherwise(self) -> str:
        """Return in words what a call on the host computes otherwise than when this was compiled; empty for nothing.

        Values that code names are left to `changed_values`.
        """
        if self.changed_values():
            return ""
        kept = ModuleAttributes(self._step)
        with modes_kept(self._step, self._traced_modes):
            found = self.retrace.again()
        kept.put_back(always=True)
        return found
