"""`CarryingExecutor`: an executor whose module carries integer buffers, which it encodes and decodes around copies."""

from __future__ import annotations

from typing import Any, Callable

from ignite_ipu.poptorch_types import Executor
from ignite_ipu.program.forward.integer_buffers import IntegerBuffers

# Methods that copy weights to the device, and to the host.
_UPLOADS = frozenset(("compile", "loadExecutable", "attachToDevice", "copyWeightsToDevice"))
_DOWNLOADS = frozenset(("copyWeightsToHostIfNeeded", "fetch_buffers"))
# These copy in both directions.
_LEAVES = frozenset(("detachFromDevice", "destroy"))


class CarryingExecutor:
    """An executor whose integer buffers on the host are as new as the weights there; all else is its own.

    Args:
        executor: The executor.
        integers: The buffers of its module.
    """

    def __init__(self, executor: Executor, integers: IntegerBuffers) -> None:
        self._executor: Any = executor
        self._integers = integers

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._executor, name)
        return self._copying(name, found) if name in _UPLOADS | _DOWNLOADS | _LEAVES else found

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._executor(*args, **kwargs)

    @property
    def rng_state(self) -> Any:
        """The random state of the device."""
        return self._executor.rng_state

    @rng_state.setter
    def rng_state(self, state: Any) -> None:
        self._executor.rng_state = state

    def _copying(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method that copies weights, and the integers with them."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if name not in _DOWNLOADS:
                self._integers.encode()
            found = method(*args, **kwargs)
            if name not in _UPLOADS:
                self._integers.decode()
            return found

        return call
