"""The class of a captured model makes ordinary models, and parts of a captured model are ordinary, too."""

from __future__ import annotations

import abc
import copy
import inspect
import pickle
from typing import Any, Callable, List, Tuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize

from ignite_ipu.deferred import CaptureError, capture_model, capture_optimizer, captured
from ignite_ipu.deferred.model.capturing_class import release_class

X = torch.randn(16, 6, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()


class Net(nn.Module, abc.ABC):
    """A model that is made by calls of its class."""

    def __init__(self, width: int = 8, *, scale: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.width, self.scale = width, scale
        self.first, self.second = nn.Linear(6, width), nn.Linear(width, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x))) * self.scale  # type: ignore[no-any-return]

    @classmethod
    def from_pretrained(cls, width: int) -> Net:
        return cls(width, scale=2.0)


def sequence() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))


def pair(make: Callable[[], Any], captures: bool) -> Tuple[Any, Any]:
    model = make()
    if captures:
        capture_model(model, clip_remedy="clip on the device")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if captures:
        capture_optimizer(optimizer)
    return model, optimizer


def update(model: Any, optimizer: Any) -> None:
    F.cross_entropy(model(X), Y).backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("make", [lambda kind: kind(4, scale=0.5), lambda kind: kind.from_pretrained(4)])
def test_another_model_of_the_class(make: Callable[[Any], Net]) -> None:
    """It is of the user's own class, and behaves like it."""
    native = make(Net)
    model, optimizer = pair(Net, True)
    update(model, optimizer)
    other = make(type(model))
    assert type(other) is Net and captured(other) is None and captured(model) is not None
    torch.testing.assert_close(other(X), native(X))
    for each in (other, native):
        assert not each.eval().first.training and each.train().training
        each(X).sum().backward()
        each.zero_grad()
    assert other.first.weight.grad is native.first.weight.grad is None


def test_the_class_can_be_asked_for_what_the_users_tells() -> None:
    """Instances, arguments and names."""
    model, _ = pair(Net, True)
    kind = type(model)
    assert isinstance(model, Net) and isinstance(Net(), kind) and not isinstance(sequence(), kind)
    assert issubclass(kind, Net) and (kind.__name__, kind.__module__) == (Net.__name__, Net.__module__)
    assert inspect.signature(kind) == inspect.signature(Net)


def test_a_class_derived_from_that_of_a_captured_model() -> None:
    """It is one like any other."""
    model, _ = pair(Net, True)

    class Doubled(type(model)):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)  # type: ignore[no-any-return]

    doubled = Doubled(4)
    assert type(doubled) is type(copy.deepcopy(doubled)) is Doubled and isinstance(doubled, Doubled)
    assert not isinstance(Net(), Doubled)
    torch.testing.assert_close(doubled.eval()(X), 2 * Net(4)(X))
    doubled(X).sum().backward()
    doubled.zero_grad()
    assert doubled.first.weight.grad is None


class Shifted(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight + 0.1


def test_a_class_that_is_set_stays_captured() -> None:
    """PyTorch gives a model with parametrizations another class, and without them its own again."""
    found = []
    for captures in (False, True):
        model, optimizer = pair(lambda: nn.Linear(6, 2), captures)
        torch.manual_seed(0)
        nn.init.normal_(model.weight)
        nn.init.zeros_(model.bias)
        update(model, optimizer)
        parametrize.register_parametrization(model, "weight", Shifted())
        update(model, optimizer)
        kinds = [model.__class__.__name__]
        parametrize.remove_parametrizations(model, "weight", leave_parametrized=False)
        update(model, optimizer)
        assert (captured(model) is not None) is captures and isinstance(model(X), torch.Tensor)
        found.append((model.weight.detach().clone(), [*kinds, model.__class__.__name__]))
        if captures:
            release_class(model)
            assert type(model) is nn.Linear
    torch.testing.assert_close(found[1][0], found[0][0])
    assert found[0][1] == found[1][1] == ["ParametrizedLinear", "Linear"]


def features(model: Any, optimizer: Any) -> List[torch.Tensor]:
    """Return the output of a part of a model in the middle of its training, in several ways to use one."""
    found = []
    for _ in range(2):
        update(model, optimizer)
        part = model[:2]
        assert type(part) is nn.Sequential
        found += [part(X), part.eval()(X), copy.deepcopy(part)(X), pickle.loads(pickle.dumps(part))(X)]
        assert not model[0].training
        model.train()
    return found


def test_parts_of_a_sequential_run_with_the_newest_weights() -> None:
    """On the host, as in eager PyTorch."""
    torch.testing.assert_close(features(*pair(sequence, True)), features(*pair(sequence, False)), rtol=1e-4, atol=1e-5)


def test_parts_of_a_sequential_are_trained() -> None:
    """By a loss of their output alone, after one of the model."""
    weights = []
    for captures in (True, False):
        model, optimizer = pair(sequence, captures)
        update(model, optimizer)
        model[:2](X).sum().backward()
        optimizer.step()
        weights.append([parameter.detach().clone() for parameter in model.parameters()])
    torch.testing.assert_close(*weights, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(torch.__version__.startswith("2.0."), reason="its compiler leaves the call to the captured model")
@pytest.mark.filterwarnings("ignore")
def test_a_captured_model_that_is_compiled_is_refused_by_name() -> None:
    model, _ = pair(sequence, captures=True)
    compiled = torch.compile(model, backend="eager")
    with pytest.raises(CaptureError, match=r"Sequential was called at .* by torch\.compile.* Leave torch\.compile out"):
        compiled(X)
