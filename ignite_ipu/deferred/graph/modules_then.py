"""`ModulesThen`: the modules of a captured model at one moment, which it can consist of again for a while."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterator, Sequence

from ignite_ipu.program.guards.python_state import PythonState
from ignite_ipu.session.weights.parts import Parts


class ModulesThen:
    """The modules of a model at one moment, their hooks, and the Python values that their attributes hold.

    It is part of no comparison: all are equal.

    Attributes:
        state: Finds the modes and Python values of these modules.
    """

    def __init__(self, state: PythonState, parts: Parts) -> None:
        self.state = state
        self._parts, self._attributes = parts, state.saved()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ModulesThen)

    def __hash__(self) -> int:
        return 0

    def attributes_by_module(self) -> Dict[int, Dict[str, Any]]:
        """Return the values of each module, comparable, by the ids of their attributes."""
        return self._attributes.by_module()

    @contextlib.contextmanager
    def put_back(self, training: Sequence[bool]) -> Iterator[None]:
        """Have the model consist of these modules, in these modes and with these values, in the `with` block."""
        with self._parts.put_modules_back():
            now = self.state.training()
            try:
                self.state.set_training(training)
                with self._attributes.put():
                    yield
            finally:
                self.state.set_training(now)
