"""Gradients of a device call put where autograd would put them, for updates that PyTorch makes on the host."""

from __future__ import annotations

import inspect
from typing import Container, List, Optional, Sequence

import torch

from ignite_ipu.program.tensors.raw import gradient_of, requires_grad, set_gradient
from ignite_ipu.session.anchored_gradients import AnchoredGradients
from ignite_ipu.torch_names import lists
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass


def accumulate(
    anchored: AnchoredGradients, gradients: Sequence[torch.Tensor], left_out: Container[int] = frozenset()
) -> None:
    """Add gradients to those of parameters, as `backward()` does: by autograd itself where there are hooks on them.

    Parameters whose ids are in `left_out` get none.
    Where a parameter has none, the tensor itself becomes its gradient.
    """
    parameters, with_hooks = anchored.parameters, anchored.hooks.among(anchored.parameters)
    present: List[torch.Tensor] = []
    more: List[torch.Tensor] = []
    hooked = list(with_hooks)
    with DisableTorchFunctionSubclass(), torch.no_grad():
        for number, (parameter, gradient) in enumerate(zip(parameters, gradients)):
            if number in with_hooks or id(parameter) in left_out:
                continue
            if not requires_grad(parameter):
                continue  # it was frozen since the forward, which autograd leaves alone
            before = gradient_of(parameter)
            if before is None:
                set_gradient(parameter, gradient)
            elif before.requires_grad:
                hooked.append(number)  # the loop has put a tensor with a history there: autograd handles it
            else:
                present.append(before)
                more.append(gradient)
        if present:
            lists.add_(present, more)
    if hooked:
        # Autograd comes to the last layers of most models first.
        hooked.sort(reverse=True)
        _by_autograd([parameters[number] for number in hooked], [gradients[number] for number in hooked])


def _by_autograd(parameters: List[torch.Tensor], gradients: List[torch.Tensor]) -> None:
    with DisableTorchFunctionSubclass():
        # Since the forward: hooks run, and the gradient stays as it is.
        frozen = [(each, gradient_of(each)) for each in parameters if not requires_grad(each)]
        for parameter, _ in frozen:
            parameter.requires_grad_()
            parameter.grad = None
        try:
            for parameter, gradient in zip(parameters, gradients):
                torch.autograd.backward(parameter, gradient)
        finally:
            for parameter, before in frozen:
                parameter.requires_grad_(False)
                set_gradient(parameter, before)


def needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether the step of an optimizer evaluates the loss itself, as that of LBFGS does."""
    parameters = list(inspect.signature(type(optimizer).step).parameters.values())[1:]
    return any(each.name == "closure" and each.default is each.empty for each in parameters)


def are_finite(gradients: Sequence[torch.Tensor]) -> bool:
    """Return whether all elements of gradients are finite."""
    if not gradients:
        return True
    norms: Optional[Sequence[torch.Tensor]] = lists.norm(list(gradients), float("inf"))
    assert norms is not None
    return bool(torch.stack([norm.float() for norm in norms]).isfinite().all())
