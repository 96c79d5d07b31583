"""Gradients of captured models and of the host are clipped together as in PyTorch, or refused on a device."""

from __future__ import annotations

from typing import Any, Callable, Iterable, List, Optional

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ignite_ipu import IPUConfig, ipu_clip_grad_norm_, ipu_prepare
from ignite_ipu.deferred import CaptureError

Given = Callable[[nn.Module, nn.Module, nn.Parameter], Iterable[torch.Tensor]]
X = torch.randn(4, 8, 4, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, 1, 0, 2, 1, 0])


def all_in_order(first: nn.Module, second: nn.Module, free: nn.Parameter) -> List[torch.Tensor]:
    return [*first.parameters(), *second.parameters(), free]


def one_model(first: nn.Module, second: nn.Module, free: nn.Parameter) -> List[torch.Tensor]:
    return [*first.parameters(), free]


def free_first(first: nn.Module, second: nn.Module, free: nn.Parameter) -> List[torch.Tensor]:
    return [free, *first.parameters()]


def of_a_module(first: nn.Module, second: nn.Module, free: nn.Parameter) -> Iterable[torch.Tensor]:
    return nn.ParameterList([*first.parameters(), free]).parameters()


def seen(given: Given, before: bool, update: Optional[str]) -> List[Any]:
    """Return the numbers of a loop that clips before or after `backward()`; None as `update` is plain PyTorch."""
    torch.manual_seed(0)
    first, second, free = nn.Linear(4, 3), nn.Linear(4, 3), nn.Parameter(torch.ones(3))
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (first, second)]
    for model, optimizer in zip((first, second), optimizers) if update is not None else ():
        ipu_prepare(model, optimizer, config=IPUConfig(update=update))
    clip: Any = torch.nn.utils.clip_grad_norm_ if update is None else ipu_clip_grad_norm_
    found: List[Any] = []
    for number, x in enumerate(X):
        for optimizer in optimizers:
            optimizer.zero_grad()
        free.grad = torch.full((3,), 2.0 + number)
        norms = [clip(given(first, second, free), 1.0)] if before else []
        losses = [F.cross_entropy(model(x), Y) for model in (first, second)]
        for loss in losses:
            loss.backward()  # type: ignore[no-untyped-call]
        norms += [] if before else [clip(given(first, second, free), 1.0)]
        for optimizer in optimizers:
            optimizer.step()
        found += [float(each.detach()) for each in (*norms, *losses)] + [free.grad.tolist()]
    return [*found, *[each.tolist() for model in (first, second) for each in model.state_dict().values()]]


@pytest.mark.parametrize("update", ["auto", "host"])
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("given", [all_in_order, one_model, free_first, of_a_module])
def test_a_parameter_of_no_model_is_clipped_with_those_of_one(given: Given, before: bool, update: str) -> None:
    """The norm is that of all gradients which exist at this moment."""
    for mine, theirs in zip(seen(given, before, update), seen(given, before, None)):
        torch.testing.assert_close(torch.tensor(mine), torch.tensor(theirs))


def test_a_device_leaves_gradients_of_the_host_to_pytorch() -> None:
    for mine, theirs in zip(seen(one_model, True, "device"), seen(one_model, True, None)):
        torch.testing.assert_close(torch.tensor(mine), torch.tensor(theirs))
    with pytest.raises(CaptureError, match=r"parameters of Linear and others, whose gradients the host has"):
        seen(one_model, False, "device")
