"""Gradients in a script: clipping by norm in a loop becomes part of the device step, and nothing else can see them."""

from __future__ import annotations

import functools
import os
import sys
import weakref
from types import FrameType
from typing import Any, Callable, List, Optional

import torch
from torch import nn

from ignite_ipu import backend
from ignite_ipu.deferred import CapturedModel, DeferredTensor
from ignite_ipu.deferred.compiled.training import CapturedTraining
from ignite_ipu.deferred.model.gradients import gradient_norm
from ignite_ipu.deferred.model.model import owner_of
from ignite_ipu.program.forward.autograd_functions import OWN_BACKWARD, has_own_backward
from ignite_ipu.running.journal import Journal
from ignite_ipu.running.ownership import ScriptCode
from ignite_ipu.running.patches import Patches
from ignite_ipu.running.substitutes.engine_weights import EngineWeights
from ignite_ipu.session.weights import access

__all__ = ["substitute_gradients"]


def _package(file: str) -> str:
    return os.path.dirname(os.path.abspath(file)) + os.sep


_NOT_READERS = (_package(torch.__file__), _package(os.path.dirname(__file__)))


def substitute_gradients(patches: Patches, code: ScriptCode, journal: Journal, trained: EngineWeights) -> None:
    """Compile clipping by norm into captured steps, and refuse to read gradients of captured and engines' models."""
    gradients = _Gradients(code, journal, trained)
    clip = gradients.clip(nn.utils.clip_grad_norm_)
    patches.set(nn.utils, "clip_grad_norm_", clip)
    patches.set(nn.utils.clip_grad, "clip_grad_norm_", clip)
    patches.set(CapturedModel, "step", gradients.step(CapturedModel.step))
    patches.set(CapturedTraining, "change_optimizer", gradients.change_optimizer(CapturedTraining.change_optimizer))
    patches.set(CapturedModel, "backward", gradients.backward(CapturedModel.backward))
    patches.set(CapturedModel, "zero_grad", gradients.zero_grad(CapturedModel.zero_grad))
    # PyTorch makes a list of functions by identity when it first needs it; that must not find the substitute.
    torch.overrides.get_default_nowrap_functions()
    patches.set(torch.Tensor, "grad", gradients.attribute(torch.Tensor.grad))
    patches.set(torch.autograd.Function, "apply", gradients.function(torch.autograd.Function.__dict__["apply"]))


class _Gradients:
    """Makes the substitutes.

    Args:
        code: What is the script's own.
        journal: Where substitutions go.
        trained: What engines train.
    """

    def __init__(self, code: ScriptCode, journal: Journal, trained: EngineWeights) -> None:
        self._code = code
        self._journal = journal
        self._trained = trained
        # Where PopTorch's classes of parameters pass on what they are asked for.
        self._wrappers = (_package(str(backend.poptorch().__file__)), access.__file__)
        # Models whose gradients are clipped, and whether they were since the last update.
        self._clipped: weakref.WeakKeyDictionary[CapturedModel, bool] = weakref.WeakKeyDictionary()
        # Models whose gradients PyTorch would still hold from the last update.
        self._uncleared: weakref.WeakSet[CapturedModel] = weakref.WeakSet()

    def clip(self, original: Callable[..., Any]) -> Any:
        @functools.wraps(original)
        def clip_grad_norm_(parameters: Any, max_norm: float, norm_type: float = 2.0, *args: Any, **kwargs: Any) -> Any:
            tensors = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
            line = self._code.current_line()
            models = {owner for owner in map(owner_of, tensors) if owner is not None}
            if not models and self._code.line_of(sys._getframe(1)) is None:
                return original(tensors, max_norm, norm_type, *args, **kwargs)
            self._compile_in(models, tensors, float(max_norm), float(norm_type), line)
            return gradient_norm()

        return clip_grad_norm_

    def step(self, original: Callable[..., Any]) -> Any:
        @functools.wraps(original)
        def step(capture: CapturedModel) -> None:
            if self._clipped.get(capture) is False:
                raise self._journal.refuse(
                    self._code.current_line(),
                    "this update",
                    "gradients were clipped for earlier updates and not for this one, and clipping is compiled in. "
                    "Clip for every update or for none.",
                )
            self._check_cleared(capture, "step()")
            original(capture)
            self._uncleared.add(capture)
            if capture in self._clipped:
                self._clipped[capture] = False

        return step

    def change_optimizer(self, original: Callable[..., Any]) -> Any:
        @functools.wraps(original)
        def change_optimizer(training: CapturedTraining, optimizer: Any) -> None:
            original(training, optimizer)
            for capture, clipped in list(self._clipped.items()):
                if capture.training is training and not clipped:
                    # Only what the optimizer before did was clipped.
                    del self._clipped[capture]
                    training.max_grad_norm = None

        return change_optimizer

    def backward(self, original: Callable[..., Any]) -> Any:
        @functools.wraps(original)
        def backward(capture: CapturedModel, loss: Any) -> None:
            self._check_cleared(capture, "backward()")
            original(capture, loss)

        return backward

    def zero_grad(self, original: Callable[..., Any]) -> Any:
        @functools.wraps(original)
        def zero_grad(capture: CapturedModel, *args: Any) -> None:
            original(capture, *args)
            self._uncleared.discard(capture)

        return zero_grad

    def function(self, original: Any) -> Any:
        def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            recorded = any(isinstance(value, DeferredTensor) for value in (*args, *kwargs.values()))
            if recorded and torch.is_grad_enabled() and has_own_backward(cls):
                raise self._journal.refuse(
                    self._code.current_line(), f"{cls.__name__}.apply()", OWN_BACKWARD.format(name=cls.__name__)
                )
            return original.__get__(None, cls)(*args, **kwargs)

        return classmethod(apply)

    def attribute(self, original: Any) -> property:
        def read(tensor: Any) -> Any:
            value = original.__get__(tensor)
            if value is None:
                self._refuse_reading(tensor, sys._getframe(1))
            return value

        def write(tensor: Any, value: Any) -> None:
            owner = owner_of(tensor)
            if (owner is not None or self._trained.trains(tensor)) and not _may_look(sys._getframe(1)):
                if value is not None:
                    raise self._journal.refuse(
                        self._code.current_line(), "parameter.grad = ...", "the device computes gradients itself."
                    )
                if owner is not None:
                    owner.zero_grad()
            original.__set__(tensor, value)

        return property(read, write, original.__delete__)

    def _refuse_reading(self, tensor: Any, frame: Optional[FrameType]) -> None:
        while frame is not None and frame.f_code.co_filename.startswith(self._wrappers):
            frame = frame.f_back
        if _may_look(frame):
            return
        if owner_of(tensor) is not None:
            remedy = (
                "To clip them use torch.nn.utils.clip_grad_norm_ over all of the model's parameters; leave updates to "
                "an optimizer."
            )
        elif self._trained.trains(tensor):
            remedy = (
                "Leave out what reads them; or make the trainer with ignite_ipu.create_ipu_trainer, whose "
                "max_grad_norm clips them, and attach ignite_ipu.handlers.Gradients to it, which brings them back."
            )
        else:
            return
        raise self._journal.refuse(
            self._code.current_line(), "parameter.grad", f"gradients exist inside the device's step alone. {remedy}"
        )

    def _check_cleared(self, capture: CapturedModel, what: str) -> None:
        if capture in self._uncleared:
            raise self._journal.refuse(
                self._code.current_line(),
                what,
                "the gradients of the last update were not cleared, so PyTorch would use them again, and the device "
                "has none left. Call optimizer.zero_grad() once for every step().",
            )

    def _compile_in(
        self, models: Any, tensors: List[torch.Tensor], max_norm: float, norm_type: float, line: Any
    ) -> None:
        what = "clip_grad_norm_()"
        if len(models) != 1:
            raise self._journal.refuse(line, what, "it has to get the parameters of one model that a loop trains.")
        (capture,) = models
        if norm_type != 2.0:
            raise self._journal.refuse(line, what, f"norm_type={norm_type}: the device clips by the 2-norm alone.")
        given = {id(tensor) for tensor in tensors}
        trained = {name for name, p in capture.session.model.named_parameters() if _trains(p)}
        missing = [name for name, p in capture.session.model.named_parameters() if _trains(p) and id(p) not in given]
        if missing:
            raise self._journal.refuse(
                line,
                what,
                f"it clips {len(trained) - len(missing)} of the model's {len(trained)} trained parameters, without "
                f"{missing[0]}; the device clips all of them together.",
            )
        training = capture.training
        if training.prepared and training.max_grad_norm != max_norm:
            before = "not clipped" if training.max_grad_norm is None else f"clipped to {training.max_grad_norm}"
            raise self._journal.refuse(
                line, what, f"the norm is {max_norm} now and gradients were {before} when the step was compiled."
            )
        training.max_grad_norm = max_norm
        self._clipped[capture] = True
        self._journal.note(line, f"{what[:-2]}(..., {max_norm})", "part of the device step")


def _trains(parameter: Any) -> bool:
    with torch._C.DisableTorchFunctionSubclass():
        return bool(parameter.requires_grad)


def _may_look(frame: Optional[FrameType]) -> bool:
    return frame is not None and frame.f_code.co_filename.startswith(_NOT_READERS)
