"""Parameters and buffers that modules are given: noticed when it happens, so that nobody has to look for them.

PyTorch calls hooks for that, of all modules of the process. One is installed with the first model, and counts what
concerns the models that are followed. Without such hooks, as in versions before 2.0, and for what PyTorch does not call
them for, others are noticed when somebody looks.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import Any, FrozenSet, Iterable, Iterator

from torch import nn
from torch.nn.modules import module as _of_all_modules

__all__ = ["NEVER", "REGISTRATIONS"]

NEVER = -1
"""No count: what somebody remembers who has yet to look."""

_HOOKS = ("register_module_parameter_registration_hook", "register_module_buffer_registration_hook")


class _Here(threading.local):
    """Number of blocks that are open in this thread in which nothing is counted."""

    uncounted = 0


class _Registrations:
    """Registrations of parameters and buffers in the modules that somebody follows.

    Attributes:
        count: How many there were; the same number means that there was none in between.
    """

    __slots__ = ("_followers", "_here", "_installed", "_modules", "count")

    def __init__(self) -> None:
        self.count = 0
        self._here = _Here()
        self._installed = False
        self._followers: weakref.WeakKeyDictionary[Any, FrozenSet[int]] = weakref.WeakKeyDictionary()
        # By id. Some may be another module's by now, or of a follower that is gone: then one is counted too many.
        self._modules: FrozenSet[int] = frozenset()

    def follow(self, follower: Any, modules: Iterable[nn.Module]) -> None:
        """Count what these modules are given, in place of those before, as long as the follower lives."""
        if not self._installed:
            self._installed = True
            for name in _HOOKS:
                install: Any = getattr(_of_all_modules, name, None)
                if install is not None:
                    install(self._note)
        found = frozenset(map(id, modules))
        if self._followers.get(follower) != found:
            self._followers[follower] = found
            self._modules = frozenset().union(*self._followers.values())

    @contextlib.contextmanager
    def uncounted(self) -> Iterator[None]:
        """Count nothing that this thread registers in the `with` block."""
        self._here.uncounted += 1
        try:
            yield
        finally:
            self._here.uncounted -= 1

    def _note(self, module: nn.Module, name: str, tensor: Any) -> None:
        if id(module) in self._modules and not self._here.uncounted:
            self.count += 1


REGISTRATIONS = _Registrations()
"""Those of this process."""
