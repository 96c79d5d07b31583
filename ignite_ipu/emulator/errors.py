"""PopTorch's own exceptions, and the three ways in which one comes to be raised.

    Exception
    └── Error                   misuse of a model or a failure in the back end
        ├── RecoverableError    the hardware can be reset and the work repeated
        └── UnrecoverableError  it cannot

PopTorch keeps the attributes of an error raised by its back end on the *class*, where the next error overwrites them.
Here they always live on the instance.
"""

from __future__ import annotations

import enum
import os
import sys
from typing import Optional, TypeVar

from ignite_ipu.emulator.logs import logger

PYTHON_ERROR = "poptorch_py_error"
RECOVERY_ACTIONS = ("IPU_RESET", "LINK_RESET", "PARTITION_RESET", "FULL_RESET")
LONGEST_MESSAGE = 10_000

_Error = TypeVar("_Error", bound="Error")


class Refusal(enum.Enum):
    """Reason for which a forward cannot be compiled, for programs that act on it."""

    HOST_READ = "the value of a tensor is asked for"
    MOVE_TO_HOST = "a tensor is moved to the host"
    MOVE_TO_GPU = "a tensor is moved to a GPU"
    HOST_TENSOR = "an operator takes a tensor of the host"
    GRADIENT = "a gradient is asked for"
    DYNAMIC_SHAPE = "a shape depends on values"
    UNSUPPORTED_OPERATOR = "an operator does not compile"
    RESTRICTED_ARGUMENT = "an operator does not compile with these arguments"
    NUMBER_FORMAT = "a weight, buffer or constant has a type that the device lacks"
    REPLACED_TENSOR = "forward puts another tensor in the place of a parameter or buffer"


class Error(Exception):
    """Error that PopTorch raises for a wrong state, a wrong input, or a program its back end refuses.

    Attributes:
        type: Kind of the error, e.g. `poptorch_py_error` or `poptorch_cpp_error`.
        message: The message without its type, location and context.
        location: `file:line` of the back-end code that raised it; empty for errors of the Python layer.
        kind: Why a forward was refused; None for all other errors. PopTorch has no such attribute.
    """

    type: str
    message: str
    location: str
    kind: Optional[Refusal]

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.type = ""
        self.message = str(args[0]) if args else ""
        self.location = ""
        self.kind = None


class RecoverableError(Error):
    """A failure of the hardware after which a reset brings the machine back.

    Attributes:
        recovery_action: The reset to make, one of `RECOVERY_ACTIONS`.
    """

    recovery_action: str

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.recovery_action = RECOVERY_ACTIONS[0]


class UnrecoverableError(Error):
    """A failure of the hardware that no reset mends."""


def python_error(message: str, kind: Optional[Refusal] = None) -> Error:
    """Return the error of PopTorch's Python layer for `message`; the caller raises it."""
    error = Error(f"'{PYTHON_ERROR}': {message}")
    error.type, error.message, error.kind = PYTHON_ERROR, message, kind
    return error


def createPoptorchError(msg: str) -> Error:
    """Return the error that PopTorch's Python layer raises with `msg` (PopTorch's own name for `python_error`)."""
    return python_error(msg)


def backend_error(message: str, type: str = "poptorch_cpp_error", kind: Optional[Refusal] = None) -> Error:
    """Return the error of the compiled back end for `message`; the caller raises it. PopTorch has the same types."""
    error = _from_backend(Error(), message, type)
    error.kind = kind
    return error


def recoverable_error(message: str, recovery_action: str) -> RecoverableError:
    """Return the error of a failure that a reset mends, one of `RECOVERY_ACTIONS`."""
    error = _from_backend(RecoverableError(), message, "poplar_recoverable_runtime_error")
    error.recovery_action = recovery_action
    return error


def unrecoverable_error(message: str) -> UnrecoverableError:
    """Return the error of a failure that no reset mends."""
    return _from_backend(UnrecoverableError(), message, "poplar_unrecoverable_runtime_error")


def cut_long_message(error: Error, log_dir: str) -> Error:
    """Shorten an error, which is returned, to `LONGEST_MESSAGE` characters that end with the path of a file with all.

    That is `poptorch_error.log` in `log_dir`; where it cannot be written, the text stays as it was.
    """
    text = str(error)
    if len(text) <= LONGEST_MESSAGE:
        return error
    path = os.path.join(log_dir, "poptorch_error.log")
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    except OSError as reason:
        logger.warning(
            "An error of %d characters is shown in full: %s cannot be written (%s). Options.logDir takes a directory "
            "that exists and may be written to.",
            len(text),
            path,
            reason,
        )
        return error
    note = f"... [cut: see {path} for all {len(text)} characters]"
    error.args = (text[: LONGEST_MESSAGE - len(note)] + note,)
    return error


def _from_backend(error: _Error, message: str, kind: str) -> _Error:
    # Two frames up stands the code that found the fault.
    frame = sys._getframe(2)
    error.location = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
    error.type, error.message = kind, message
    error.args = (f"{error.location}: '{kind}': {message}",)
    return error
