"""`ipu_prepare`: the models and optimizers of a loop that stays as it is written, captured in place."""

from __future__ import annotations

from typing import Any, Iterable, Iterator, List, Optional, TypeVar, Union

import torch
from torch import nn

from ignite_ipu import backend
from ignite_ipu.capabilities.optimizers import ON_THE_HOST
from ignite_ipu.deferred.graph.owners import held_tensors
from ignite_ipu.deferred.model.capturing import capture_model, captured
from ignite_ipu.deferred.model.clipping import clip_gradients
from ignite_ipu.deferred.model.optimizer import capture_optimizer, steps_on_host
from ignite_ipu.deferred.settings import refuse_for_capture
from ignite_ipu.deferred.tensor.device_gradient import has_returned
from ignite_ipu.errors import CaptureError
from ignite_ipu.program.config import Configuration, IPUConfig
from ignite_ipu.program.refusal_frames import brief_refusals
from ignite_ipu.program.tensors.raw import gradient_of
from ignite_ipu.program.user_code import current_line
from ignite_ipu.session.data_parallel import adopt
from ignite_ipu.session.processes import unwrapped
from ignite_ipu.session.session import known_session
from ignite_ipu.torch_names.modules import has_parameters
from ignite_ipu.torch_names.optimizers import pre_hooks_of
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass

_CLIP_REMEDY = "use ignite_ipu.ipu_clip_grad_norm_(model.parameters(), ...)"
_Prepared = TypeVar("_Prepared", nn.Module, torch.optim.Optimizer)


@brief_refusals
def ipu_prepare(
    first: _Prepared, *others: Union[nn.Module, torch.optim.Optimizer], config: Configuration = None
) -> _Prepared:
    """Capture models and optimizers in place, so that a loop written for PyTorch trains on an IPU as it stands.

    `optimizer = ipu_prepare(torch.optim.SGD(model.parameters(), lr=0.1), model)` is all that such a loop needs: the
    work between two calls of `optimizer.step()` is one device step. In evaluation mode, or without gradients, the model
    runs at once, with the newest weights. With `IGNITE_IPU_BACKEND=native` nothing is captured.

    Args:
        first: A model, or an optimizer.
        others: The related objects: for an optimizer, the models that it trains, each as the loop calls it. Of one in
            `DataParallel`, `DistributedDataParallel` or `torch.compile` the model within is captured, and of a
            `ModuleList` or `ModuleDict` the modules in it.
        config: How the steps are compiled; an `IPUConfig`, a mapping or the path of a file.

    Returns:
        `first`, the same object.

    Raises:
        TypeError: Something is neither a model nor an optimizer.
        CaptureError, OptionsError: The settings cannot be honoured.
        SessionError: A model is trained by another engine, or some of it is not on the CPU.
    """
    given: List[Any] = [first, *others]
    for each in given:
        if not isinstance(each, (nn.Module, torch.optim.Optimizer)):
            raise TypeError(f"ipu_prepare was given a {type(each).__name__}: it takes models and optimizers.")
    if backend.choice() == "native":
        return first
    settings = IPUConfig.of(config)
    refuse_for_capture(settings)
    for each in given:
        adopt(each)
    given = [part for each in given for part in _callable_parts(each)]
    # Captured before, where this stands in a function that is called again.
    models = [each for each in given if isinstance(each, nn.Module) and captured(each) is None]
    models = [each for each in models if has_parameters(each)]
    for model in sorted(models, key=lambda model: -sum(1 for _ in model.modules())):  # those with others in them first
        capture_model(model, settings, clip_remedy=_CLIP_REMEDY)
    loops = [captured(each) for each in given if isinstance(each, nn.Module)]
    setup = next((loop.setup for loop in loops if loop is not None), None)
    for each in given:
        if isinstance(each, torch.optim.Optimizer) and _refuse_host_step not in pre_hooks_of(each).values():
            capture_optimizer(each, alone=True, setup=setup)
            if settings.update != "host":
                each.register_step_pre_hook(_refuse_host_step)
    return first


def _callable_parts(given: Any) -> Iterator[Any]:
    """Yield an optimizer, a model without its wrapper, or the modules in a container that has no forward of its own."""
    inner = unwrapped(given) if isinstance(given, nn.Module) else given
    if isinstance(inner, nn.Module) and type(inner).forward is nn.Module.forward:
        for part in inner.children():
            yield from _callable_parts(part)
    else:
        yield inner


def ipu_release(*models: nn.Module) -> None:
    """Give back the IPUs of captured models, or of models that engines train, until their next calls.

    Weights and optimizer state are on the host then, and training goes on from them. Programs stay compiled.

    Args:
        models: Models that `ipu_prepare`, `ipu_step`, an `IPUAccelerator`, `ignite-ipu run` or an engine's factory was
            given, or parts of these. A model without IPUs is left alone.

    Raises:
        SessionError: Something on the device could not be copied.
    """
    for model in models:
        inner = unwrapped(model)
        loop = captured(inner)
        session = known_session(inner) if loop is None else loop.session
        if session is not None:
            session.detach()


def ipu_clip_grad_norm_(
    parameters: Union[torch.Tensor, Iterable[torch.Tensor]], max_norm: float, norm_type: float = 2.0, **kwargs: Any
) -> torch.Tensor:
    """Clip gradients as `torch.nn.utils.clip_grad_norm_` does; those of a captured model within the device's step.

    Args:
        parameters: All that the model trains.
        max_norm: The norm to clip to, the same in every update.
        norm_type: 2.
        kwargs: As for PyTorch's function, which clips where no captured model has the parameters.

    Returns:
        The norm before; on an IPU a tensor whose value comes with the update.

    Raises:
        CaptureError: It is no 2-norm, differs from the compiled one, or is not of all trained parameters.
    """
    return clip_gradients(parameters, max_norm, norm_type, **kwargs)


def host_step_reason(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Optional[str]:
    """Return the reason why an optimizer of captured models cannot step on the host, by the arguments of `step`.

    None if no parameter has a gradient that the device has not computed: PyTorch's step changes nothing then, or it
    steps tensors that are no weights.
    """
    if any(callable(argument) for argument in (*args[1:], *kwargs.values())):
        return (
            "it evaluates the loss several times through a closure, which a compiled step cannot. Use SGD, Adam, "
            f"AdamW or RMSprop, and call backward and step() without a closure. {ON_THE_HOST}"
        )
    with DisableTorchFunctionSubclass():
        with_gradient = [each for each in held_tensors(optimizer) if gradient_of(each) is not None]
        if all(map(has_returned, with_gradient)):
            return None
    return (
        "no captured step computed its gradients, so the update would run on the host. Call the model that holds its "
        "parameters, and backward() on the loss."
    )


def _refuse_host_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    reason = None if steps_on_host(optimizer) else host_step_reason(optimizer, args, kwargs)
    if reason is None:
        return
    raise CaptureError(
        f"{type(optimizer).__name__}.step() at {current_line()}: {reason} A model is captured when it is given to "
        "ipu_prepare together with its optimizer."
    )
