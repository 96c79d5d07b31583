"""Gradients in a script: clipping by norm becomes part of the device step, and nothing else can see them there."""

from __future__ import annotations

import os
import sys
import weakref
from types import FrameType
from typing import Any, Callable, FrozenSet, Optional, Tuple

import torch
from torch import nn

from ignite_ipu import backend
from ignite_ipu.deferred import CaptureError
from ignite_ipu.deferred.model.clipping import clip_gradients
from ignite_ipu.deferred.model.model import loops_of
from ignite_ipu.program.tensors.raw import requires_grad
from ignite_ipu.running.patches import Substitutes
from ignite_ipu.session.session import IPUSession
from ignite_ipu.session.weights import access
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass


def _package(file: str) -> str:
    return os.path.dirname(os.path.abspath(file)) + os.sep


_TORCH = _package(torch.__file__)
_RUNNING = _package(os.path.dirname(__file__))
_UNREAD = (
    "the trainer's steps bring no gradients back, since no handler that reads them was found when it started. Attach "
    "the handler before trainer.run(), or attach ignite_ipu.handlers.Gradients to a trainer made by "
    "ignite_ipu.create_ipu_trainer."
)


def substitute_gradients(substitutes: Substitutes, trained: EngineWeights) -> None:
    """Compile clipping by norm into captured steps, and refuse to read gradients of trainers."""
    gradients = _Gradients(substitutes, trained)
    substitutes.calls(nn.utils, "clip_grad_norm_", gradients.clip)
    substitutes.set(nn.utils.clip_grad, "clip_grad_norm_", nn.utils.clip_grad_norm_)
    # PyTorch makes a list of functions by identity when it first needs it; that must not find the substitute.
    torch.overrides.get_default_nowrap_functions()
    substitutes.set(torch.Tensor, "grad", gradients.attribute(torch.Tensor.grad))


class EngineWeights:
    """The weights that trainers hold at present; their gradients are on the device, and None on the host."""

    def __init__(self) -> None:
        # How many tensors a session had, and their ids; it holds on to them, so that no id becomes another tensor's.
        self._known: weakref.WeakKeyDictionary[IPUSession, Tuple[int, FrozenSet[int]]] = weakref.WeakKeyDictionary()

    def add(self, session: IPUSession) -> None:
        """Count the weights of a session, as long as it has a trainer."""
        self._known[session] = (0, frozenset())

    def trains(self, tensor: torch.Tensor, hidden: bool = False) -> bool:
        """Return whether a trainer trains this tensor, and on request, whether its gradient is hidden."""
        # Asked in the ordinary way, a wrapped parameter would download all weights first.
        with DisableTorchFunctionSubclass():
            if not requires_grad(tensor):
                return False
        with_trainer = [each for each in self._known if each.training is not None]
        if hidden:
            with_trainer = [session for session in with_trainer if not session.hooks.shows_gradients]
        return any(id(tensor) in self._ids(session) for session in with_trainer)

    def _ids(self, session: IPUSession) -> FrozenSet[int]:
        tensors = session.weights.held.tensors
        count, ids = self._known[session]
        if count != len(tensors):  # they are only ever added to
            ids = frozenset(map(id, tensors))
            self._known[session] = (len(tensors), ids)
        return ids


class _Gradients:
    def __init__(self, substitutes: Substitutes, trained: EngineWeights) -> None:
        self._substitutes, self._trained = substitutes, trained
        # Methods by which PopTorch's classes of parameters pass on accesses.
        self._wrappers = (_package(str(backend.poptorch().__file__)), access.__file__)

    def clip(
        self,
        frame: FrameType,
        original: Callable[..., Any],
        parameters: Any,
        max_norm: float,
        norm_type: float = 2.0,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        tensors = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        loops = loops_of(tensors)
        what = "clip_grad_norm_()"
        if not loops:
            # No loop trains them. A trainer's are on the device, those of no one are on the host, if there are any.
            of_user = self._substitutes.code.line_of(frame) is not None
            if not (of_user and any(map(self._trained.trains, tensors))):
                return original(tensors, max_norm, norm_type, *args, **kwargs)
            raise self._substitutes.refusal(what, "it has to get the parameters of a model that a loop trains.")
        given = dict(zip(("error_if_nonfinite", "foreach"), args), **kwargs)
        try:
            norm = clip_gradients(tensors, float(max_norm), float(norm_type), **given)
        except CaptureError as error:
            raise self._substitutes.refusal(what, str(error)) from None
        on_host = all(loop.now.updates.on_host for loop in loops)
        became = "on the host" if on_host else "part of the device step"
        self._substitutes.note(f"{what[:-2]}(..., {float(max_norm)})", became)
        return norm

    def attribute(self, original: Any) -> property:
        def read(tensor: Any) -> Any:
            value = original.__get__(tensor)
            if value is None and tensor is not None and self._trained.trains(tensor, hidden=True) and self._is_asked():
                raise self._substitutes.refusal("parameter.grad", _UNREAD)
            return value

        def write(tensor: Any, value: Any) -> None:
            if value is not None and self._trained.trains(tensor) and self._is_asked():
                raise self._substitutes.refusal("parameter.grad = ...", "the device computes gradients itself.")
            original.__set__(tensor, value)

        return property(read, write, original.__delete__)

    def _is_asked(self) -> bool:
        """Return whether code other than PyTorch's looks, whose access PopTorch's classes of parameters pass on."""
        frame: Optional[FrameType] = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename.startswith(self._wrappers):
            frame = frame.f_back
        return frame is not None and not frame.f_code.co_filename.startswith((_TORCH, _RUNNING))
