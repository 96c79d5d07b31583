"""Clipping of gradients to a global norm, of parameters of one captured loop or of several."""

from __future__ import annotations

from typing import Any, Iterable, List, Union

import torch
from torch.nn.utils import clip_grad_norm_  # PyTorch's own, which a script's calls may be substituted for

from ignite_ipu.deferred.model.clipping import are_of_one_module
from ignite_ipu.deferred.model.loop import Loop
from ignite_ipu.deferred.model.model import first_owner, loops_of
from ignite_ipu.errors import CaptureError
from ignite_ipu.program.user_code import current_line


def clip_gradients(
    parameters: Union[torch.Tensor, Iterable[torch.Tensor]], max_norm: float, norm_type: float = 2.0, **kwargs: Any
) -> torch.Tensor:
    """Clip gradients as `torch.nn.utils.clip_grad_norm_` does; those of a captured loop within the device's step.

    Returns:
        The norm before; of a captured loop a tensor whose value comes with the update.

    Raises:
        CaptureError: It is no 2-norm, or is not of all trained parameters of one optimizer.
    """
    owner, every = first_owner(parameters)
    if owner is None:
        return clip_grad_norm_(list(every), max_norm, norm_type, **kwargs)
    loop, checks = owner.loop, bool(kwargs.get("error_if_nonfinite"))
    known = are_of_one_module(parameters) and any(programs.prepared for programs in loop.updates.programs)
    if checks or not known:
        every = list(every)
        loops = loops_of(every)
        if checks or len(loops) > 1:
            return _clip_on_host(loops, every, max_norm, norm_type, **kwargs)
    return loop.updates.gradients.clip(every, float(max_norm), float(norm_type), parameters)


def _clip_on_host(
    loops: List[Loop], tensors: List[torch.Tensor], max_norm: float, norm_type: float, **kwargs: Any
) -> torch.Tensor:
    """Clip gradients that no device's step clips together, or whose norm decides whether to go on."""
    on_device = [loop for loop in loops if not loop.updates.on_host]
    if not any(loop.updates.gradients.shows(each) for each in tensors for loop in loops_of([each])):
        return torch.tensor(0.0)
    names = " and ".join(sorted(loop.name for loop in loops))
    reason = (
        f"clip_grad_norm_ at {current_line()} was given parameters of {names}, which are trained apart: "
        "clip those of each by a call of its own."
        if len(loops) > 1
        else f"clip_grad_norm_ at {current_line()} has error_if_nonfinite=True, and a device has the norm with the "
        "update. Read the norm that it returns after optimizer.step()."
    )
    for loop in on_device:
        loop.updates.leave_device(reason, CaptureError(reason))
    return clip_grad_norm_(tensors, max_norm, norm_type, **kwargs)
