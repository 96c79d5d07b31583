"""The calls of modules in a trace, followed to their end: a model may catch what a module of it raises."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable, Iterator

from torch import nn

from ignite_ipu.emulator.trace.active import active
from ignite_ipu.emulator.trace.isolation import replaced


@contextlib.contextmanager
def followed(enter: Callable[[nn.Module], None], leave: Callable[[nn.Module], None]) -> Iterator[None]:
    """Call `enter` before each call of a module in the `with` block and `leave` after it, in the thread that traces."""
    # PyTorch's hooks will not do: after a forward that raises, older versions call none, and newer ones not always.
    original: Any = nn.Module.__call__

    @functools.wraps(original)
    def called(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        if active() is None:
            return original(module, *args, **kwargs)
        enter(module)
        try:
            return original(module, *args, **kwargs)
        finally:
            leave(module)

    with replaced(nn.Module, "__call__", called):
        yield
