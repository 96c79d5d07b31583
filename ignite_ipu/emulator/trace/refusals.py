"""Refusals of operations in a trace, and PyTorch's errors about an IPU in clear words."""

from __future__ import annotations

import contextlib
import traceback
from typing import Any, Dict, Iterator, Optional, Tuple

import torch
from torch import nn

from ignite_ipu.emulator.errors import Error, Refusal, backend_error
from ignite_ipu.emulator.trace import call_sites
from ignite_ipu.emulator.trace.active import IpuTensor
from ignite_ipu.operators.words import words
from ignite_ipu.torch_names.dispatch import LOCAL_SCALAR, UNIQUE, differentiates, transformation
from ignite_ipu.torch_names.fake_tensors import DynamicOutputShapeException
from ignite_ipu.torch_names.files import COMPILER_FILE, is_of_compiler
from ignite_ipu.torch_names.modules import all_named_modules, compiled_call_of
from ignite_ipu.torch_names.tensors import CALLS_OF_BACKWARD

_READS_VALUE = (
    *words("item tolist __bool__ __int__ __float__ __complex__ __index__ __contains__ is_nonzero equal allclose"),
    *("apply_", "map_", "map2_", LOCAL_SCALAR),
)
_MOVES_TO_HOST = words("cpu numpy __array__ __dlpack__ cuda xpu")
_DYNAMIC_SHAPE = (*words("nonzero argwhere masked_select unique unique_consecutive unique_dim"), UNIQUE)
_BACKWARD = ("backward", *CALLS_OF_BACKWARD)
_RECOMPUTATION = (
    "The compiler saves memory by itself at calls of poptorch.recomputationCheckpoint(tensor): use these instead."
)


class DynamicOutputShape(DynamicOutputShapeException):
    """Selection by a mask, for which PyTorch's inference of shapes raises its own error."""

    kind = Refusal.DYNAMIC_SHAPE

    def __init__(self, message: str) -> None:
        super().__init__(torch.ops.aten.index.Tensor)
        self.args = (message,)


def refuse(name: str, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
    """Refuse a call that needs values or the host, or whose result's shape depends on the data.

    Raises:
        Error: As PopTorch's compiler would.
        DynamicOutputShape: It selects by a mask.
    """
    if name in _READS_VALUE:
        raise needs_value(name)
    if name in _MOVES_TO_HOST:
        raise illegal_move(f".{name}()", name)
    if name in _BACKWARD:
        raise backend_error(
            f"{name}() is not supported inside a traced model: trainingModel compiles the backward pass and the "
            "optimizer's update itself. Return the loss instead.",
            kind=Refusal.GRADIENT,
        )
    if name == "__getitem__":
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        if any(isinstance(part, IpuTensor) and part.meta.dtype in (torch.bool, torch.uint8) for part in index):
            raise DynamicOutputShape(f"Indexing by a mask is unsupported: {_by_values()}")
    if name in _DYNAMIC_SHAPE or (name == "where" and len(args) + len(kwargs) == 1):
        kind = "nonzero" if name in ("where", "argwhere") else name
        problem = f"Operations using aten::{kind} are unsupported: {_by_values()}"
        raise backend_error(problem, kind=Refusal.DYNAMIC_SHAPE)


def refuse_differentiation() -> None:
    """Refuse code within `torch.func.grad` and its relatives: gradients are the compiled step's own."""
    innermost = transformation()
    if innermost is not None and differentiates(innermost):
        raise backend_error(
            "torch.func.grad, vjp, jvp and transforms of them are not supported inside a traced model: the compiled "
            "step contains the backward pass alone. Write the derivative out, or take it on the host.",
            kind=Refusal.GRADIENT,
        )


def refuse_compiled_modules(model: nn.Module) -> None:
    """Refuse modules that `torch.compile` or `torch.jit` has taken over: their Python cannot be traced."""
    for name, module in all_named_modules(model):
        # A wrapper of torch.compile's keeps its compiled call in the object.
        wrapper = type(module).__name__ == "OptimizedModule" and "forward" in module.__dict__
        compiled = wrapper or compiled_call_of(module) is not None
        if compiled or isinstance(module, torch.jit.ScriptModule):
            raise backend_error(
                f"{'torch.compile' if compiled else 'torch.jit'} is not supported in a model for the IPU, and "
                f"{repr(name) if name else 'the model itself'} is compiled by it: PopTorch compiles the model. Wrap "
                "the module that it was made from."
            )


def foreign(tensor: torch.Tensor) -> Error:
    """Return the error for an operator that takes a tensor which is no traced one."""
    described = f"{tensor.dtype} of shape {tuple(tensor.shape)}"
    if tensor.device.type == "ipu":
        # A transform's tensor wraps one on the IPU, and reports the device of that one.
        return backend_error(
            f"Expected an IPU tensor but got a tensor of torch.vmap or another transform of torch.func ({described}): "
            "an operator cannot take it together with a tensor from outside of the transform in a traced model. Write "
            "the dimension that is mapped over out, with broadcasting, torch.bmm or torch.einsum.",
            kind=Refusal.UNSUPPORTED_OPERATOR,
        )
    return backend_error(
        f"Expected an IPU tensor but got tensor ({described} on {tensor.device}), {call_sites.here()}: operators of a "
        "traced model take tensors that are on the IPU. Register it as a buffer of the model, or move it in with "
        ".to(x.device), which freezes its value.",
        kind=Refusal.HOST_TENSOR,
    )


def needs_value(what: str) -> Error:
    """Return the error for an operation that reads the value of a traced tensor, with its line."""
    place, remedy = call_sites.of_read()
    return backend_error(
        f"{what} is only supported in eager mode: it needs the value of a tensor that is on the IPU, and while the "
        f"model is traced there are no values. It is called {place}. {remedy}",
        kind=Refusal.HOST_READ,
    )


def illegal_move(what: str, target: str) -> Error:
    """Return the error for a call of `what`, which would bring a traced tensor to the device `target`."""
    return backend_error(
        f"Illegal move to CPU ({what}): a tensor on the IPU has no value on the host while the model is traced. It is "
        f"called {call_sites.here()}. Return it from forward, or use poptorch.CPU to run host code inside the model.",
        kind=Refusal.MOVE_TO_GPU if target.startswith(("cuda", "xpu")) else Refusal.MOVE_TO_HOST,
    )


def _by_values() -> str:
    return (
        "the output shape is determined by the tensor values, and a dynamic output shape is not supported. It is used "
        f"{call_sites.here()}. Use a fixed-size formulation, for example torch.where or multiplication by a mask."
    )


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Raise the back end's error in place of one of PyTorch's that does not name the operator."""
    try:
        yield
    except Exception as error:
        explanation = None if isinstance(error, Error) else _explanation(error)
        if explanation is None:
            raise
        raise explanation from error


def _explanation(error: Exception) -> Optional[Error]:
    if isinstance(error, AttributeError) and "module 'torch' has no attribute 'ipu'" in str(error):
        return backend_error(
            "Unsupported ops found in compiled model: PyTorch looked for a module torch.ipu, as torch.utils.checkpoint "
            f"does. {_RECOMPUTATION}"
        )
    files = (frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__))
    if is_of_compiler(type(error)) or COMPILER_FILE in files:
        return backend_error(
            "torch.compile is not supported in a model for the IPU, and forward calls a function that it compiled: "
            "PopTorch compiles the model. Call the function that it was made from."
        )
    if isinstance(error, RuntimeError) and "'IPU' backend" in str(error):
        return backend_error(
            f"Code that Python does not run makes a tensor on the IPU, called {call_sites.of_error(error)}: a function "
            "of TorchScript, or of an extension. The emulator records calls from Python alone. Leave torch.jit.script "
            "out of the function."
        )
    return without_half_kernel(error)


def without_half_kernel(error: Exception) -> Optional[Error]:
    """Return the back end's error for a missing float16 kernel of the host, or None for other errors."""
    if not isinstance(error, RuntimeError) or "not implemented for 'Half'" not in str(error):
        return None
    return backend_error(
        f"PyTorch {torch.__version__} cannot compute this in float16 on a CPU, as the emulator does: {error}. Newer "
        "versions have more of these kernels: run the emulator with one of them, or the model in float32."
    )


def checkpoint_refused() -> Error:
    """Return the error for PyTorch's checkpoints, which autograd computes again."""
    return backend_error(
        "Unsupported ops found in compiled model: torch.utils.checkpoint leaves gradients to autograd, which has no "
        f"part in the compiled step: there would be none. {_RECOMPUTATION}"
    )
