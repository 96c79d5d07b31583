"""Eager mode of captured models: as while a program or `torch.jit` traces them, they run as ordinary modules."""

from __future__ import annotations

import threading
from typing import Any

from ignite_ipu.torch_names.dispatch import tracing_state


class _Eager(threading.local):
    """A context in which captured models run as ordinary modules, in this thread; they do in `torch.jit.trace`, too."""

    depth = 0
    """The number of `with` blocks that run."""

    @property
    def is_on(self) -> bool:
        """True if captured models run eagerly now."""
        return self.depth > 0 or tracing_state() is not None

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *error: Any) -> None:
        self.depth -= 1


EAGER = _Eager()
