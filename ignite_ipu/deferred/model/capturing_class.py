"""The class of a captured model: that of the user's model, with calls that are captured.

It is for the captured object alone. Anything else that is made from it, as by `type(model)(...)`, by
`type(model).from_pretrained(...)` or as a part `model[:2]` of an `nn.Sequential`, is an ordinary model.
"""

from __future__ import annotations

import copy
from typing import Any, Callable

from torch import nn

from ignite_ipu.capabilities.transforms import OTHER_WEIGHTS, TRANSFORMED
from ignite_ipu.deferred.tensor.deferred_values import deferred_values, resolved
from ignite_ipu.deferred.tensor.frames import called_by, frame_of
from ignite_ipu.errors import CaptureError
from ignite_ipu.program.derived_class import derived_once, standing_for
from ignite_ipu.program.forward.eager import EAGER
from ignite_ipu.program.module_tables import CHANGES
from ignite_ipu.program.refusal_frames import brief_refusals
from ignite_ipu.program.user_code import current_line
from ignite_ipu.torch_names.dispatch import autocasts_on_cpu, tracing_state, transformation
from ignite_ipu.torch_names.files import COMPILER_FOLDER
from ignite_ipu.torch_names.modules import FUNCTIONAL_CALL

CAPTURE = "_ignite_ipu_capture"
"""The attribute of a model that holds what captures it."""

_set_class = object.__dict__["__class__"].__set__


def release_class(model: nn.Module) -> None:
    """Give a model its own class back, if it has that of a captured one."""
    if CAPTURE in model.__dict__:
        del model.__dict__[CAPTURE]
        model.__class__ = type(model).__mro__[1]


@derived_once
def capturing_class(base: Any) -> Any:
    """Return the class for captured models of a class.

    Objects of it that are not captured, such as those of its subclasses, behave like those of `base`.
    """

    @brief_refusals
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        # A trace notes its reads of a model, and a look into __dict__ reads all of it.
        capture = None if EAGER.depth or tracing_state() is not None else self.__dict__.get(CAPTURE)
        if capture is None:
            return base.__call__(self, *args, **kwargs)
        has_own_weights = capture.tables == CHANGES.count or capture.has_own_weights()
        if autocasts_on_cpu() or transformation() is not None or not has_own_weights:
            refuse_transforms(self, capture.has_own_weights)
        return capture.call(args, kwargs)

    def train(self: Any, mode: bool = True) -> Any:
        capture = self.__dict__.get(CAPTURE)
        if capture is not None and mode != self.training:
            capture.session.end_pass(always=False)
        return base.train(self, mode)

    def zero_grad(self: Any, set_to_none: bool = True) -> None:
        capture = self.__dict__.get(CAPTURE)
        if capture is None:
            base.zero_grad(self, set_to_none)
        else:
            capture.loop.updates.gradients.zero_grad(self, set_to_none)

    def load_state_dict(self: Any, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        if CAPTURE in self.__dict__ and deferred_values(state_dict):
            given, state_dict = state_dict, copy.copy(state_dict)
            # Tensors that are assigned, not copied, replace those with which the values are computed.
            state_dict.update(resolved(dict(given), "load_state_dict()"))
        return base.load_state_dict(self, state_dict, *args, **kwargs)

    def reduce_ex(self: Any, protocol: Any) -> Any:
        made = base.__reduce_ex__(self, protocol)
        if CAPTURE not in self.__dict__ or isinstance(made, str):
            return made
        # Copies and files are of the original class, and capture nothing.
        function, args, *rest = made
        if rest and isinstance(rest[0], dict):
            rest[0] = {key: value for key, value in rest[0].items() if key != CAPTURE}
        return (function, tuple(base if value is capturing else value for value in args), *rest)

    def deepcopy(self: Any, memo: Any) -> Any:
        capture = self.__dict__.get(CAPTURE)
        if capture is not None:
            memo[id(capture)] = None
        made = base.__deepcopy__(self, memo)
        made.__dict__.pop(CAPTURE, None)
        return made

    def class_of(self: Any) -> Any:
        return base if CAPTURE in self.__dict__ else type(self)  # pickle compares it with the reduced class

    def set_class(self: Any, value: Any) -> None:
        # PyTorch gives another class to a lazy layer that has its weights, and to a module with parametrizations.
        _set_class(self, capturing_class(value) if CAPTURE in self.__dict__ else value)

    members = {
        "__call__": call,
        "__class__": property(class_of, set_class),
        "__doc__": base.__doc__,
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__reduce_ex__": reduce_ex,
        "load_state_dict": load_state_dict,
        "train": train,
        "zero_grad": zero_grad,
    }
    if hasattr(base, "__deepcopy__"):
        members["__deepcopy__"] = deepcopy
    capturing = standing_for(base)(base.__name__, (base,), members)
    return capturing


def refuse_transforms(model: nn.Module, has_own_weights: Callable[[], bool]) -> None:
    """Refuse a call that autocast or `torch.func` transforms: the program is compiled for the model's own weights."""
    name = type(model).__name__
    if autocasts_on_cpu():
        raise CaptureError(
            f"{name} was called at {current_line()} under torch.autocast for the CPU, but its program is "
            "compiled with the number format of IPUAccelerator(mixed_precision=...), 'no' or 'fp16'. PyTorch's "
            "autocast chooses bfloat16, which does not exist on an IPU. Leave it out, or use accelerator.autocast()."
        )
    if transformation() is not None and called_by(COMPILER_FOLDER):
        raise CaptureError(
            f"{name} was called at {current_line()} by torch.compile, which was given the model after it was captured: "
            "PopTorch compiles the step. Leave torch.compile out, or give its result to ipu_prepare, which calls the "
            "model within."
        )
    if transformation() is not None:
        raise CaptureError(f"{current_line()}: {TRANSFORMED.refusal(name, name)}")
    if FUNCTIONAL_CALL is not None and frame_of(FUNCTIONAL_CALL) is not None and not has_own_weights():
        raise CaptureError(f"{current_line()}: {OTHER_WEIGHTS.refusal(name, name)}")
