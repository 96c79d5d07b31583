"""Attributes replaced for a while, and put back in the opposite order."""

from __future__ import annotations

import sys
from typing import Any, Callable, Dict, List

__all__ = ["Patches"]

_ABSENT = object()


class Patches:
    """Replaces attributes until `undo`."""

    def __init__(self) -> None:
        self._restore: List[Callable[[], None]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute of a module or class, also one that it inherits."""
        own: Dict[str, Any] = dict(vars(owner))
        before = own.get(name, _ABSENT)
        setattr(owner, name, value)

        def put_back() -> None:
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

        self._restore.append(put_back)

    def set_everywhere(self, package: str, original: Any, value: Any) -> None:
        """Replace an object under every name that loaded modules of a package know it by."""
        # A copy in one step: another thread, or what is finalized on the way, may import modules.
        for module_name, module in sys.modules.copy().items():
            if module_name == package or module_name.startswith(package + "."):
                for name in [name for name, found in list(vars(module).items()) if found is original]:
                    self.set(module, name, value)

    def on_undo(self, action: Callable[[], None]) -> None:
        """Call something when the attributes are put back, before those that were replaced earlier."""
        self._restore.append(action)

    def undo(self) -> None:
        """Put everything back, whatever goes wrong on the way.

        Raises:
            BaseException: The first that an action raised, or a signal handler during one, after all the others ran.
        """
        failures: List[BaseException] = []
        while self._restore:
            try:
                self._restore.pop()()
            except BaseException as error:
                failures.append(error)
        if failures:
            raise failures[0]
