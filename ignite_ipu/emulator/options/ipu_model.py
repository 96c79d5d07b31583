"""Whether the IPU model, a simulation on the host, is asked for instead of hardware."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ignite_ipu.emulator.options.root import Options

VARIABLES = ("POPTORCH_IPU_MODEL", "POPTORCH_SMALL_IPU_MODEL")
VERSION_VARIABLE = "POPTORCH_IPU_MODEL_VERSION"
VERSIONS = ("ipu1", "ipu2", "ipu21")


def selected_by_environment() -> bool:
    """Return whether a variable selects the IPU model.

    Raises:
        ValueError: A variable is no integer.
    """
    return any(_flag(variable) for variable in VARIABLES)


def selected(options: Options) -> bool:
    """Return whether `options` or, where they leave it open, the environment selects the IPU model."""
    return bool(options.use_model) if options.exists("use_model") else selected_by_environment()


def version() -> str:
    """Return which IPU a model would be of; all compute the same here.

    Raises:
        ValueError: The variable names none.
    """
    found = os.environ.get(VERSION_VARIABLE, "ipu2")
    if found not in VERSIONS:
        raise ValueError(f"Environment variable {VERSION_VARIABLE} must be one of {VERSIONS}, and it is {found!r}.")
    return found


def _flag(variable: str) -> bool:
    text = os.environ.get(variable, "0")
    try:
        return int(text) != 0
    except ValueError:
        raise ValueError(f"Environment variable {variable} must be 0 or 1, and it is {text!r}.") from None
