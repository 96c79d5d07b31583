"""Code of PyTorch's that is running, or the caller, by Python's stack."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from types import CodeType, FrameType
from typing import Any, Callable, Optional, Sequence, Tuple

import torch
from torch.autograd.function import BackwardCFunction
from torch.distributions import ContinuousBernoulli, Distribution, Geometric, Uniform

from ignite_ipu.capabilities.traced import OWN_BACKWARD
from ignite_ipu.deferred.graph.operations import Value
from ignite_ipu.errors import CaptureError, logger
from ignite_ipu.program.forward.gradients import functions_of_autograd
from ignite_ipu.program.user_code import OURS, Line, current_line, frame_outside
from ignite_ipu.torch_names.files import TRANSFORMS
from ignite_ipu.torch_names.modules import SAMPLE_CHECK

DISTRIBUTIONS = os.path.dirname(torch.distributions.__file__) + os.sep
"""Folder of PyTorch's distributions."""

# All of these only check that values are valid.
_ARGUMENT_CHECKS = (
    Distribution.__init__.__code__,
    SAMPLE_CHECK,
    ContinuousBernoulli.__init__.__code__,
    Geometric.__init__.__code__,
    Uniform.__init__.__code__,
)
# PyTorch 2.0 compiles a scripted function for the arguments of its first call, and crashes with tensors without memory.
_SCRIPTS_CRASH = torch.__version__.startswith("2.0.")


def frame_of(code: CodeType) -> Optional[FrameType]:
    """Return the innermost frame that runs this code, None where none does."""
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame


def called_by(folder: str) -> bool:
    """Return whether code in a folder called the running code."""
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None and not frame.f_code.co_filename.startswith(folder):
        frame = frame.f_back
    return frame is not None


def is_argument_check() -> bool:
    """Return whether the caller of this library is the check of a distribution's parameters or of a sample."""
    frame = frame_outside(OURS)
    return frame is not None and frame.f_code in _ARGUMENT_CHECKS


def refuse_function(values_in: Callable[[Any], Sequence[Value]], arguments: Any, returned: bool = False) -> None:
    """Refuse an operation of an `autograd.Function` on deferred values that depend on weights.

    PyTorch runs such a function without gradients, so none would flow through the recorded operations. `returned` says
    that the operation is the one with which PyTorch passes on an argument that a forward returned.
    """
    if any(value.shape.requires_grad for value in values_in(arguments)):
        name, line = _applied_function() or ("Function" if returned else "", current_line())
        if name:
            raise CaptureError(
                f"{line}: {OWN_BACKWARD.refusal(name)} To compute the value alone, apply it to x.detach()."
            )


def passes_argument_on(func: Any, arguments: Sequence[Any]) -> bool:
    """Return whether an operation without gradients is the view that `Function.apply` takes of a returned argument."""
    if func is torch.Tensor.view_as:
        return len(arguments) == 2 and arguments[0] is arguments[1]
    # PyTorch 2.0 makes it in C++.
    return func is torch.ops.aten.view.default and tuple(arguments[0].shape) == tuple(arguments[1])


def _applied_function() -> Optional[Tuple[str, Line]]:
    """Return the innermost `autograd.Function` that is being applied, and the line that does; None if there is none.

    Its forward is found on the stack: since PyTorch 2.14 `apply` has no Python code whose frame could be found. A
    forward without a context looks the same when it is called directly, and counts as applied.
    """
    forwards = {id(_code_of(each.forward)): each for each in functions_of_autograd()}
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None:
        function = forwards.get(id(frame.f_code))
        if function is not None:
            if function.setup_context is not torch.autograd.Function.setup_context:
                return str(function.__name__), current_line(inner=frame)
            first = next(iter(frame.f_code.co_varnames), "")
            context = frame.f_locals.get(first)
            context = context[0] if isinstance(context, tuple) and context else context
            if isinstance(context, BackwardCFunction):
                return type(context).__name__[: -len("Backward")], current_line(inner=frame)
        frame = frame.f_back
    return None


def _code_of(function: Any) -> Optional[CodeType]:
    """Return the code of a function below its decorators, which other functions may share."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    if not hasattr(function, "__code__"):
        function = type(function).__call__
    return getattr(function, "__code__", None)


def refuse_script() -> None:
    """Refuse a call from C++ that is no transform's: a scripted function's, with which PyTorch 2.0 crashes."""
    if _SCRIPTS_CRASH and not called_by(TRANSFORMS):
        error = CaptureError(
            f"A function of TorchScript is called at {current_line()} with a value of the training step, and PyTorch "
            f"{torch.__version__} would end the process at its next call. Leave torch.jit.script out, or call the "
            "function within the model's forward."
        )
        # TorchScript raises an error of its own, without this text.
        logger.error("%s", error)
        raise error
