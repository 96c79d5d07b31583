"""Every exception that this library raises, lists of names in their messages, and the logger.

Exception
└── IPUError                            anything of this library's own
    ├── BackendError                    no PopTorch, or another one than was asked for       (RuntimeError)
    ├── OptionsError                    options that contradict each other                   (ValueError)
    ├── UnsupportedArgumentError        an argument that only means something on a GPU       (ValueError)
    ├── BatchError                      a batch that the compiled model cannot take          (ValueError)
    ├── RowsError                       rows that are not one per sample                     (ValueError)
    ├── LoaderError                     data that cannot feed a compiled model               (RuntimeError)
    ├── LossError                       a loss that cannot be trained with                   (ValueError)
    ├── OutputError                     a model's output that no device can return           (TypeError)
    ├── OptimizerError                  an optimizer that an IPU cannot run                  (ValueError)
    │   └── ConstantAttributeError      a value that was compiled in has been changed
    ├── SessionError                    engines over one model that contradict each other    (RuntimeError)
    ├── LostEditError                   weights written where the device had newer ones      (RuntimeError)
    ├── ProcessesError                  processes that would not train one model together    (RuntimeError)
    ├── CaptureError                    a loop that cannot run as one device step            (RuntimeError)
    │   ├── EarlyReadError              a value was read before the step has run
    │   └── ForwardError                a forward whose code no program can run          (SessionError)
    ├── IPUOutOfMemoryError             a program that does not fit                          (RuntimeError)
    ├── RecoveryError                   a device fault that was not recovered from           (RuntimeError)
    ├── CheckpointError                 a checkpoint that is not complete, safe, or fitting  (RuntimeError)
    ├── PlanError                       a plan, placement or setting that cannot run         (ValueError)
    ├── ParityError                     a factory whose results cannot be compared           (ValueError)
    ├── SourceError                     a file that cannot be read as Python
    ├── WriteError                      a file that was not written
    └── UserError                       a request to a command that cannot be met
        ├── MissingLibraryError         an optional library that is not installed            (ImportError)
        └── RunError                    a line of a script that cannot run on IPUs

The class in brackets is a second base, of Python. Exceptions of PopTorch are `poptorch.Error`.
"""

from __future__ import annotations

import difflib
import logging
from typing import Any, Callable, ClassVar, Iterable, Optional, Sequence, Tuple

logger = logging.getLogger("ignite_ipu")

_TROUBLESHOOTING = "docs/troubleshooting.md"


class IPUError(Exception):
    """Base of all exceptions of this library.

    Attributes:
        docs: Section of the documentation that explains the error. Tracebacks show it from Python 3.11 on.
    """

    docs: ClassVar[str] = f"{_TROUBLESHOOTING}#ipuerror"

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.__module__ == __name__:
            cls.docs = f"{_TROUBLESHOOTING}#{cls.__name__.lower()}"

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        add_note: Optional[Callable[[str], None]] = getattr(self, "add_note", None)
        if add_note is not None:
            add_note(f"Read more: {self.docs}")


class BackendError(IPUError, RuntimeError):
    """The PopTorch that was asked for cannot be had."""


class OptionsError(IPUError, ValueError):
    """Options that contradict each other, or that no IPU can run."""


class UnsupportedArgumentError(IPUError, ValueError):
    """An argument that means something on a GPU and cannot mean it on an IPU."""


class BatchError(IPUError, ValueError):
    """A batch that the compiled model cannot take."""


class RowsError(IPUError, ValueError):
    """Tensors whose rows are not one per sample."""


class LoaderError(IPUError, RuntimeError):
    """Data that cannot feed a compiled model, or a loader that failed."""


class LossError(IPUError, ValueError):
    """A loss that cannot be trained with on an IPU."""


class OutputError(IPUError, TypeError):
    """A model's output that no device can return."""


class OptimizerError(IPUError, ValueError):
    """An optimizer that an IPU cannot run, or that does not fit the model it trains.

    Attributes:
        receipt: The `Receipt` of all attributes, if some cannot be converted; None otherwise.
    """

    def __init__(self, message: str, receipt: Any = None) -> None:
        super().__init__(message)
        self.receipt = receipt


class ConstantAttributeError(OptimizerError):
    """A hyper-parameter that is a constant of the compiled program has been changed.

    Attributes:
        attribute: Name of the hyper-parameter.
    """

    def __init__(self, attribute: str, message: str) -> None:
        super().__init__(message)
        self.attribute = attribute


class SessionError(IPUError, RuntimeError):
    """Engines over one model that contradict each other, a model that cannot go to an IPU, or lost training."""


class LostEditError(IPUError, RuntimeError):
    """Weights that were written on the host while the device had newer ones, so that the write is lost."""


class ProcessesError(IPUError, RuntimeError):
    """Processes that would not train one model together."""


class CaptureError(IPUError, RuntimeError):
    """A training step that cannot run as one device step."""


class EarlyReadError(CaptureError):
    """A value of the captured step was read before the step has run."""


class ForwardError(CaptureError, SessionError):
    """A forward whose Python code has effects in every call, or needs values: a program runs no Python code."""


class IPUOutOfMemoryError(IPUError, RuntimeError):
    """A program or its data that do not fit the device.

    The message ends the way memory-retry helpers such as accelerate's `find_executable_batch_size` look for.
    """


class RecoveryError(IPUError, RuntimeError):
    """A device fault that was not recovered from; the run's state is saved. The cause is PopTorch's exception."""


class CheckpointError(IPUError, RuntimeError):
    """A checkpoint that cannot be written, is not complete, is not safe to read, or is of another model."""


class PlanError(IPUError, ValueError):
    """A plan, a placement or a setting of theirs that cannot run; the message has the numbers and a way out."""


class ParityError(IPUError, ValueError):
    """A factory whose results cannot be compared."""


class SourceError(IPUError):
    """A file that cannot be read as Python.

    Attributes:
        line: The line at fault, from 1.
    """

    def __init__(self, message: str, line: int = 1) -> None:
        super().__init__(message)
        self.line = line


class WriteError(IPUError):
    """A file that was not written; its earlier content is intact."""


class UserError(IPUError):
    """Request of a user that cannot be met; commands print the message without a traceback.

    Args:
        message: The cause, the value, the way out.
        exit_code: Exit code of the process.
    """

    def __init__(self, message: str, *, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class MissingLibraryError(UserError, ImportError):
    """An optional library is needed and not installed; the message has the command that installs it.

    Args:
        purpose: The action that needs the library.
        library: Its name.
        extra: The extra of this package that brings it.
    """

    def __init__(self, purpose: str, library: str, extra: str) -> None:
        super().__init__(f"{purpose} needs {library}, which is not installed: pip install 'ignite-ipu[{extra}]'")


class RunError(UserError):
    """A line of a script that cannot run on IPUs; the run ends there.

    Args:
        line: File and line number, None where it is not known.
        reason: Why not, and the way out.
    """

    def __init__(self, line: Optional[Tuple[str, int]], reason: str) -> None:
        place = "" if line is None else f"{line[0]}:{line[1]}: "
        super().__init__(f"{place}{reason}")
        self.line = line


def out_of_memory(error: Exception) -> Optional[IPUOutOfMemoryError]:
    """Return the error of a program that does not fit, or None for other exceptions."""
    if isinstance(error, IPUOutOfMemoryError) or "out of memory" not in str(error).lower():
        return error if isinstance(error, IPUOutOfMemoryError) else None
    return IPUOutOfMemoryError(
        f"The program does not fit the device: {error} Use smaller micro-batches and more gradient accumulation, as "
        "fit_batch finds them. (Looked for by retry helpers: CUDA out of memory.)"
    )


def listed(names: Sequence[str], most: int = 3) -> str:
    """Return the first `most` of the names, and how many more there are."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def nearest(name: str, known: Iterable[str]) -> Optional[str]:
    """Return the known name that a misspelt one may stand for, None if there is none like it."""
    names = {each.lower(): each for each in sorted(known)}
    found = difflib.get_close_matches(name.lower(), names, n=1)
    return names[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about a name that there is not: the nearest of the known ones, all if none is."""
    names = sorted(known)
    near = nearest(name, names)
    return f" Did you mean {near!r}?" if near else f" Choose from: {', '.join(names)}."
