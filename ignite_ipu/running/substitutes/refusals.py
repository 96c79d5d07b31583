"""Calls that no IPU program can stand in for, refused at the line that makes them; and some that need nothing.

Among these are `autocast` and `GradScaler`: captured loops run in single precision.
"""

from __future__ import annotations

import inspect
from types import FrameType
from typing import Any, Callable

import torch
import torch.distributed
from torch import nn
from torch.amp.autocast_mode import autocast

from ignite_ipu.capabilities import GRADIENTS, PRECISION, WRAPPERS, Treatment
from ignite_ipu.deferred.model.model import owner_of
from ignite_ipu.program.torch_compiled import leave_out_compiler
from ignite_ipu.program.user_code import current_line
from ignite_ipu.running.patches import Substitutes

_OF_MODULES = "torch.nn.Module."


def refuse_unmappable(substitutes: Substitutes) -> None:
    """Refuse, at the script's own lines, code that would train differently than it is written."""

    def compile_(line: Any, original: Any, model: Any = None, **kwargs: Any) -> Any:
        if model is None:  # a decorator
            return lambda function: compile_(line, original, function, **kwargs)
        substitutes.note("torch.compile()", WRAPPERS["torch.compile"].sentence, line)
        if not isinstance(model, nn.Module):
            return model
        try:
            # Its back end would never compile anything, and takes seconds to import.
            wrapped: Any = original(model, disable=kwargs.get("disable", False), backend="eager")
        except RuntimeError:  # for this Python there is no wrapper
            return model
        if not isinstance(wrapped, nn.Module):  # a function, for a wrapper
            return model
        leave_out_compiler(wrapped, log=False)
        return wrapped

    def compile_in_place(line: Any, original: Any, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        substitutes.note("module.compile()", WRAPPERS["torch.nn.Module.compile"].sentence, line)

    for entry in (*GRADIENTS.with_treatment(Treatment.REFUSED), *WRAPPERS.with_treatment(Treatment.REFUSED)):
        if entry.name.startswith(_OF_MODULES) and hasattr(nn.Module, entry.last):  # some are of a later PyTorch
            substitutes.refuse(nn.Module, entry.last, f"module.{entry.last}()", entry.refusal, packages=True)

    def clip_values(frame: FrameType, original: Any, parameters: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        owners = [owner for owner in map(owner_of, tensors) if owner is not None]
        if substitutes.code.line_of(frame) is None and not owners:
            return original(tensors, *args, **kwargs)
        loops = {owner.loop for owner in owners}
        if not loops or not all(loop.updates.on_host or loop.updates.may_leave for loop in loops):
            raise substitutes.refusal("clip_grad_value_()", GRADIENTS["torch.nn.utils.clip_grad_value_"].refusal)
        for loop in loops:
            loop.updates.leave_device(f"clip_grad_value_() is called at {current_line()}.")
        substitutes.note("clip_grad_value_()", "on the host, as all that PyTorch does with gradients")
        return original(tensors, *args, **kwargs)

    substitutes.calls(nn.utils, "clip_grad_value_", clip_values)
    # Known by more than one name.
    substitutes.set(nn.utils.clip_grad, "clip_grad_value_", nn.utils.clip_grad_value_)
    if hasattr(torch, "compile"):
        substitutes.own_calls(torch, "compile", compile_)
    if hasattr(nn.Module, "compile"):  # since PyTorch 2.1
        substitutes.own_calls(nn.Module, "compile", compile_in_place)


def substitute_precision(substitutes: Substitutes) -> None:
    """Switch off the automatic precision that the script sets, itself or through Ignite."""

    def switched_off(what: str, frame: FrameType, original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        line, _ = substitutes.code.line_behind(frame)
        if line is not None:
            given = inspect.signature(original).bind(*args, **kwargs)
            if given.arguments.get("enabled", True):
                substitutes.note(f"{what}()", PRECISION[f"torch.amp.{what}"].sentence, line)
            given.arguments["enabled"] = False
            if what == "autocast":
                # On a machine without a GPU, even switched off it would warn of one that is missing.
                given.arguments.update(device_type="cpu", dtype=torch.bfloat16)
            args, kwargs = given.args, given.kwargs
        original(*args, **kwargs)

    scaler: Any = getattr(torch.amp, "GradScaler", torch.cuda.amp.GradScaler)
    substitutes.calls(autocast, "__init__", switched_off, "autocast")
    substitutes.calls(scaler, "__init__", switched_off, "GradScaler")
