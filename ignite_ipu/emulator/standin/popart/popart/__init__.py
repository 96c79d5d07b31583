"""PopART's enumerations, whose values PopTorch programs pass to `Options._Popart.set`, and its version."""

from __future__ import annotations

import logging as _logging
from typing import Any, Tuple

from ignite_ipu.emulator.logs import python_level as _python_level
from ignite_ipu.emulator.options.popart_enums import ENUMERATIONS as _ENUMERATIONS
from ignite_ipu.emulator.version import __version__

globals().update(_ENUMERATIONS)
__all__ = sorted([*_ENUMERATIONS, "getLogger", "packageHash", "versionNumber", "versionString"])


class _Logger:
    def __init__(self, name: str) -> None:
        self._logger = _logging.getLogger(f"popart:{name}")

    def setLevel(self, level: str) -> None:
        self._logger.setLevel(_python_level(level))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._logger, name)


def getLogger(name: str = "all") -> Any:
    """Return a logger whose levels are `TRACE`, `DEBUG`, `INFO`, `WARN`, `ERR` and `OFF`."""
    return _Logger(name)


def versionString() -> str:
    """Return the emulator's version, which begins with PopART's."""
    return __version__


def versionNumber() -> Tuple[int, int, int]:
    """Return the three parts of PopART's version."""
    major, minor, point = map(int, __version__.partition("+")[0].split("."))
    return major, minor, point


def packageHash() -> str:
    """Return a mark of this build: the emulator's version."""
    return __version__


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"module 'popart' has no attribute {name!r}: this is the PopTorch emulator's, which has of PopART only the "
        "enumerations that are values of Options._Popart.set. Programs for PopART itself need Graphcore's SDK."
    )
