"""Functions of `torch.func` around a captured model are refused by name; those of its outputs are PyTorch's."""

from __future__ import annotations

import copy
import re
from typing import Any, Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ignite_ipu.deferred import CaptureError, capture_model, capture_optimizer

X = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()


def trained() -> Any:
    """Return a captured model after one update."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2))
    capture_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    capture_optimizer(optimizer)
    F.cross_entropy(model(X), Y).backward()
    optimizer.step()
    return model


def zeros(model: nn.Module) -> Any:
    return {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}


def within(model: nn.Module) -> torch.Tensor:
    """Call a module that the captured one is part of."""
    weights = {f"0.{name}": value for name, value in zeros(model).items()}
    result: torch.Tensor = torch.func.functional_call(nn.Sequential(model), weights, (X,))
    return result


REPLACED = [lambda model: torch.func.functional_call(model, zeros(model), (X,)), within]
TRANSFORMED = [
    lambda model: torch.func.vmap(model)(X),
    lambda model: torch.func.jacrev(model)(X),
    lambda model: torch.func.grad(lambda x: model(x).sum())(X),
]


@pytest.mark.parametrize("training", [True, False])
def test_its_own_weights_are_those_of_the_program(training: bool) -> None:
    model = trained().train(training)
    own = torch.func.functional_call(model, dict(model.named_parameters()), (X,))
    torch.testing.assert_close(own.detach() + 0, model(X).detach() + 0)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("call", REPLACED)
def test_other_weights_than_its_own_are_refused(call: Callable[[Any], Any], training: bool) -> None:
    """A program has the model's; evaluations after it would have the others, too."""
    model = trained().train(training)
    with pytest.raises(CaptureError, match=r"test_transforms\.py:\d+: .*by functional_call.*copy\.deepcopy\(model\)"):
        call(model)
    assert call(copy.deepcopy(model)).abs().sum() == 0


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("call", TRANSFORMED)
def test_transforms_are_refused(call: Callable[[Any], Any], training: bool) -> None:
    """In training and evaluation; a copy is transformed as ever, with the newest weights."""
    model = trained().train(training)
    with pytest.raises(CaptureError, match=r"test_transforms\.py:\d+: .*within a transform of torch\.func"):
        call(model)
    own = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2))
    own.load_state_dict(model.state_dict())
    torch.testing.assert_close(call(copy.deepcopy(model)), call(own))


@torch.jit.script
def scripted(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return the mean squared difference."""
    return (found - wanted).pow(2).mean()


def mapped(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return the same, sample by sample."""
    each: Callable[..., torch.Tensor] = torch.vmap(lambda one, other: (one - other).pow(2).mean())
    return each(found, wanted).mean()


_CRASHES = torch.__version__.startswith("2.0.")


@pytest.mark.skipif(not _CRASHES, reason="newer versions of PyTorch call it")
def test_functions_in_torchscript_are_refused_where_pytorch_crashes(caplog: pytest.LogCaptureFixture) -> None:
    """The process goes on; the reason is logged, because the interpreter's own error has none."""
    with pytest.raises(RuntimeError, match="TorchScript interpreter"):
        scripted(trained().train()(X), X[:, :2])
    assert re.search(r"TorchScript is called at .*test_transforms.py:\d+ .*Leave torch\.jit", caplog.text)


@pytest.mark.parametrize(
    ("function", "grad"),
    [
        pytest.param(scripted, True, marks=pytest.mark.skipif(_CRASHES, reason="PyTorch 2.0 crashes")),
        (mapped, True),
        (mapped, False),
    ],
)
def test_losses_of_functions_in_torchscript_and_of_vmap(
    function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], grad: bool
) -> None:
    """Their gradient is PyTorch's; without gradients there is none."""
    models = []
    for captures in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(6, 3)
        if captures:
            capture_model(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        capture_optimizer(optimizer)
        for _ in range(3):
            output = model(X)
            with torch.set_grad_enabled(grad):
                loss = function(output, X[:, :3])
            assert loss.requires_grad == grad
            (loss if grad else output.mean() * (1 + loss)).backward()
            optimizer.step()
            optimizer.zero_grad()
        models.append(model)
    torch.testing.assert_close(models[1].state_dict(), models[0].state_dict())
