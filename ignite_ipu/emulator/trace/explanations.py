"""Errors of PyTorch about an IPU, which it does not know, in words that say what to do."""

from __future__ import annotations

import contextlib
import os
from types import TracebackType
from typing import Iterator, Optional

import torch

from ignite_ipu.emulator.errors import Error, backend_error

_NO_MODULE = "module 'torch' has no attribute 'ipu'"
_NO_HALF_KERNEL = "not implemented for 'Half'"
_COMPILER = "torch._dynamo"
_RECOMPUTATION = (
    "The compiler saves memory by itself where poptorch.recomputationCheckpoint(tensor) tells it to: use that instead."
)
_COMPILES = os.path.join("torch", "_dynamo", "convert_frame.py")


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Raise the back end's error in place of one of PyTorch's that does not tell what cannot be compiled.

    Raises:
        Error: For an error of the `with` block that is known; others pass.
    """
    try:
        yield
    except Error:
        raise
    except Exception as error:
        explanation = _explanation(error)
        if explanation is None:
            raise
        raise backend_error(explanation) from error


def without_half_kernel(error: RuntimeError) -> Optional[Error]:
    """Return the back end's error for one of a program that ran, if the host lacks a kernel in float16."""
    explanation = _half_explanation(error)
    return None if explanation is None else backend_error(explanation)


def checkpoint_refused() -> Error:
    """Return the error for PyTorch's checkpoints, which autograd computes again."""
    return backend_error(
        "Unsupported ops found in compiled model: torch.utils.checkpoint leaves gradients to autograd, which has no "
        f"part in the compiled step: there would be none. {_RECOMPUTATION}"
    )


def _half_explanation(error: Exception) -> Optional[str]:
    if not isinstance(error, RuntimeError) or _NO_HALF_KERNEL not in str(error):
        return None
    return (
        f"PyTorch {torch.__version__} cannot compute this in float16 on a CPU, as the emulator does: {error}. Newer "
        "versions have more of these kernels: run the emulator with one of them, or the model in float32."
    )


def _explanation(error: Exception) -> Optional[str]:
    if isinstance(error, AttributeError) and _NO_MODULE in str(error):
        return (
            "Unsupported ops found in compiled model: PyTorch looked for a module torch.ipu, as torch.utils.checkpoint "
            f"does. {_RECOMPUTATION}"
        )
    if type(error).__module__.startswith(_COMPILER) or _passed_through(error.__traceback__, _COMPILES):
        return (
            "torch.compile is not supported in a model for the IPU, and forward calls a function that it compiled: "
            "PopTorch compiles the model. Call the function that it was made from."
        )
    return _half_explanation(error)


def _passed_through(traceback: Optional[TracebackType], file: str) -> bool:
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename.endswith(file):
            return True
        traceback = traceback.tb_next
    return False
