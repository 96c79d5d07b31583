"""`CarryingExecutor`: an executor whose module carries integer buffers, which it encodes and decodes around copies."""

from __future__ import annotations

from typing import Any, Callable

from ignite_ipu.poptorch_types import Executor
from ignite_ipu.program.forward.integer_buffers import IntegerBuffers
from ignite_ipu.session.twin import ExecutorAround

# Methods that copy weights to the device, and to the host.
_UPLOADS = frozenset(("compile", "loadExecutable", "attachToDevice", "copyWeightsToDevice"))
_DOWNLOADS = frozenset(("copyWeightsToHostIfNeeded", "fetch_buffers"))
# These copy in both directions.
_COPIES = _UPLOADS | _DOWNLOADS | {"detachFromDevice", "destroy"}


class CarryingExecutor(ExecutorAround):
    """An executor whose integer buffers on the host are as new as the weights there; all else is its own.

    Args:
        executor: The executor.
        integers: The buffers of its module.
    """

    def __init__(self, executor: Executor, integers: IntegerBuffers) -> None:
        super().__init__(executor)
        self._integers = integers

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        return self._copying(name, found) if name in _COPIES else found

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
