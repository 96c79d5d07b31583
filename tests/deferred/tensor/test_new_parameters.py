"""`nn.Parameter(...)` of weights and results of a captured loop is an ordinary parameter, as in PyTorch."""

from __future__ import annotations

import copy
from typing import Any, Callable, Dict, List, Optional

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ignite_ipu import IPUConfig, ipu_prepare

X = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    optimizer.zero_grad()
    output: torch.Tensor = model(X)
    F.cross_entropy(output, Y).backward()
    optimizer.step()
    return output


def trained(update: Optional[str], **layers: nn.Module) -> Any:
    """Return a model after two updates, its optimizer, and its last output."""
    torch.manual_seed(0)
    model = nn.Sequential(layers.get("first", nn.Linear(4, 6)), nn.Tanh(), nn.Linear(6, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    if update is not None:
        ipu_prepare(optimizer, model, config=IPUConfig(update=update))
    step(model, optimizer)
    return model, optimizer, step(model, optimizer)


FORMS: Dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "a weight": lambda model, output: model[0].weight,
    "a product": lambda model, output: model[0].weight * 2,
    "its data": lambda model, output: (model[0].weight * 2).data,
    "an average": lambda model, output: torch.stack([model[0].weight, model[0].weight + 1]).mean(0),
    "a longer weight": lambda model, output: torch.cat([model[0].weight, torch.zeros(1, 4)]),
    "a view": lambda model, output: model[0].weight[:2],
    "a transposed weight": lambda model, output: model[0].weight.t(),
    "a result": lambda model, output: output,
    "a result without gradients": lambda model, output: output.detach().mean(0),
    "a result that is not known": lambda model, output: model(X),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("update", ["device", "host"])
def test_it_has_the_value_and_class_of_pytorch(update: str, form: str) -> None:
    """It requires gradients, or none if the call asks for none."""
    expected = nn.Parameter(FORMS[form](*trained(None)[::2]))
    model, _, output = trained(update)
    found = nn.Parameter(FORMS[form](model, output))
    assert type(found) is nn.Parameter and found.requires_grad and found.is_leaf
    assert not nn.Parameter(FORMS[form](model, output), requires_grad=False).requires_grad
    with torch.no_grad():
        again = nn.Parameter(FORMS[form](model, output))
    assert type(again) is nn.Parameter and again.requires_grad and torch.equal(again, found)
    torch.testing.assert_close(found, expected)
    assert type(copy.deepcopy(found)) is nn.Parameter


@pytest.mark.parametrize("form", ["a weight", "a view"])
def test_it_shares_the_memory_of_a_weight(form: str) -> None:
    """A write into it is one into the weight, with which the next update goes on."""

    def written(update: Optional[str]) -> List[torch.Tensor]:
        model, optimizer, output = trained(update)
        with torch.no_grad():
            nn.Parameter(FORMS[form](model, output)).mul_(0.5)
        step(model, optimizer)
        return [each.detach().clone() for each in model.parameters()]

    torch.testing.assert_close(written("device"), written(None))


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("update", ["device", "auto", "host"])
def test_a_weight_that_a_layer_computed_becomes_its_own(update: str) -> None:
    """As `remove_weight_norm` does after training; the model trains on."""

    def plain(update: Optional[str]) -> List[torch.Tensor]:
        torch.manual_seed(1)
        model, _, _ = trained(update, first=nn.utils.weight_norm(nn.Linear(4, 6)))
        nn.utils.remove_weight_norm(model[0])
        names = [name for name, _ in model.named_parameters()]
        assert names == ["0.bias", "0.weight", "2.weight", "2.bias"]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if update is not None:
            ipu_prepare(optimizer, model, config=IPUConfig(update=update))
        step(model, optimizer)
        return [each.detach().clone() for each in model.parameters()]

    torch.testing.assert_close(plain(update), plain(None), rtol=1e-4, atol=1e-6)
