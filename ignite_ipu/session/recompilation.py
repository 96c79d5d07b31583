"""Finds out whether a model is still the one that its programs were compiled from.

They hold its parameters and buffers at that time, and have Python values and whole numbers in buffers as constants.
"""

from __future__ import annotations

from typing import Callable, Sequence, Set, Tuple

from torch import nn

from ignite_ipu.errors import SessionError, logger
from ignite_ipu.program.guards.retrace import MOST_CALLS
from ignite_ipu.program.module_state import NEVER
from ignite_ipu.program.module_tables import CHANGES
from ignite_ipu.session.compiled_program import CompiledProgram
from ignite_ipu.session.hooks import SessionHooks
from ignite_ipu.session.program import ModelProgram
from ignite_ipu.session.weights.tracker import Weights

_PYTHON_CHANGED = (
    "Python values that the program read while it was traced have changed (%s): it is compiled again. On IPUs each "
    "compilation takes minutes: make values that change often inputs or buffers. Later changes of the same names are "
    "not reported."
)
_COMPUTED_OTHERWISE = (
    "Something that the code of %s does not name has changed its result (%s), after the program was compiled. %s. "
    "Name the value in the code, as an attribute or a global, and it counts from the next call."
)
_LATE = "Up to %d calls since then had the previous values"
_BUFFERS_CHANGED = (
    "Buffers that are compiled into the program have changed (%s): it is compiled again. They are those of integers or "
    "booleans, and those that the code reads. On IPUs each compilation takes minutes: make values that change often "
    "inputs or buffers of floating-point numbers."
)


class ModelChanges:
    """Follows changes of a model since its session began and its programs were traced: compiles again, or refuses."""

    def __init__(
        self, model: nn.Module, weights: Weights, compile_again: Callable[[ModelProgram], None], hooks: SessionHooks
    ) -> None:
        self._model = model
        self._weights = weights
        self._compile_again = compile_again
        self._hooks = hooks
        # The counts of changes of tensors, and of all tables, when the model last had the tensors of the session.
        self._changes, self._tables = weights.held.changes, NEVER
        self._reported: Set[str] = set()

    def refuse_replaced(self) -> None:
        """Refuse a model, or a loss that is a module, whose tensors are not those of the session."""
        changed, beside = self._replaced()
        if changed or beside:
            what = f"{', '.join(changed)} of the model" if changed else f"{', '.join(beside)} of the trainer"
            raise SessionError(
                f"{what} was replaced, added or removed since its session began, but the programs and the optimizer "
                "hold the tensors of that time. Change parameters in place (with copy_() under torch.no_grad(), or "
                "load_state_dict), or call trainer.ipu.close() and create the engines again."
            )
        self._changes = self._weights.held.changes

    def _replaced(self) -> Tuple[Sequence[str], Sequence[str]]:
        """Return the names of replaced tensors of the model, and of those beside it."""
        return self._weights.held.replaced(self._model), self._weights.held.replaced_beside()

    def follow(self, program: ModelProgram, compares_code: bool = True) -> None:
        """Compile a program again if its constants have changed.

        Callers that compare the Python values of the code themselves need not have that done here.
        """
        if compares_code and self._tables != CHANGES.count:
            if self._changes != self._weights.held.changes:
                self.refuse_replaced()
            self._tables = CHANGES.count
        compiled = program.state
        if not isinstance(compiled, CompiledProgram):
            return
        changed: Sequence[str] = compiled.changed_values() if compares_code else ()
        if changed:
            self._replace(program, changed, _PYTHON_CHANGED)
            return
        changed = compiled.changed_buffers() if compiled.buffers else ()
        if changed:
            self._replace(program, changed, _BUFFERS_CHANGED)
        elif compiled.is_due or compiled.calls >= MOST_CALLS:
            self.look_again(program)

    def look_again(self, program: ModelProgram) -> None:
        """Trace a program's module a second time, and have it compiled again if that computes something else.

        With other tensors, which the next call finds, it is another module.
        """
        if self._changes != self._weights.held.changes and any(self._replaced()):
            return
        compiled = program.compiled
        calls = 0 if compiled is None else compiled.calls
        found = "" if compiled is None else compiled.computed_otherwise()
        if not found:
            return
        name = type(program.step.model).__qualname__
        if calls:
            self._hooks.follower.refuse_frozen(_COMPUTED_OTHERWISE % (name, found, _LATE % calls))
        logger.warning(_COMPUTED_OTHERWISE, name, found, "It is compiled again")
        self.refuse_replaced()
        self._compile_again(program)
        program.changed = [f"something that the code of {name} does not name: {found}"]

    def refuse_frozen(self, reason: str, only_keeps: bool) -> None:
        """Refuse, for a reason, a forward that changes Python values in every call: a compiled program runs it once.

        Results of the trace that stay the same in another call, such as a cache, are no such values.
        """
        follower = self._hooks.follower
        (follower.report_kept if only_keeps else follower.refuse_frozen)(reason)

    def _replace(self, program: ModelProgram, changed: Sequence[str], message: str) -> None:
        self.refuse_replaced()
        names = ", ".join(changed)
        if message is not _PYTHON_CHANGED or names not in self._reported:
            logger.warning(message, names)
        self._reported.add(names)
        self._compile_again(program)
        program.changed = [f"{name} has changed, which is a constant of the program" for name in changed]
