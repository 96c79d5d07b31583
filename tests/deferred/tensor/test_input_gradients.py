"""Gradients of inputs come with updates on the host; a fused update refuses them with a way out."""

from __future__ import annotations

import copy
from typing import Any, Callable, Dict, List, Optional, Tuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ignite_ipu import IPUConfig, ipu_prepare
from ignite_ipu.deferred import CaptureError, capture_model, capture_optimizer

X = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()


def prepared(model: nn.Module) -> Tuple[nn.Module, Any]:
    capture_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    capture_optimizer(optimizer)
    return model, optimizer


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))


def inputs() -> torch.Tensor:
    return X.clone().requires_grad_()


def penalty(model: nn.Module) -> None:
    x = inputs()
    torch.autograd.grad(model(x).sum(), x, create_graph=True)


def attack(model: nn.Module) -> None:
    F.cross_entropy(model(X + torch.zeros_like(X).requires_grad_()), Y).backward()


def of_weights(model: nn.Module) -> None:
    torch.autograd.grad(model(X).sum(), list(model.parameters()))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("ask", [penalty, attack])
def test_asking_for_them_is_refused(ask: Callable[[nn.Module], None], training: bool) -> None:
    """In both modes; the message names a place with gradients of inputs."""
    model, _ = prepared(network())
    model.train(training)
    with pytest.raises(CaptureError, match=r"Gradients of inputs .* on the host.* copy\.deepcopy\(model\)"):
        ask(model)


def test_models_that_nobody_trains() -> None:
    """Their outputs depend on inputs, too."""
    model = network().eval()
    capture_model(model)
    x = inputs()
    with pytest.raises(CaptureError, match=r"evaluation mode.*Gradients of inputs"):
        model(x).sum().backward()
    assert not model(X).requires_grad
    with torch.no_grad():
        assert not model(x).requires_grad


def test_gradients_of_weights_are_the_devices() -> None:
    """They are refused in the same words."""
    model, _ = prepared(network())
    with pytest.raises(CaptureError, match=r"test_input_gradients\.py:\d+: .* asks .*on the device.*copy\.deepcopy"):
        of_weights(model)


class Force(nn.Module):
    """Returns a derivative of its result, as models of molecules do."""

    def __init__(self, enabled: bool) -> None:
        super().__init__()
        self.energy = nn.Linear(6, 1)
        self.enabled = enabled

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.set_grad_enabled(self.enabled or torch.is_grad_enabled()):
            x = x.detach().requires_grad_()
            return torch.autograd.grad(self.energy(x).tanh().sum(), x, create_graph=True)[0]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("enabled", [True, False])
def test_a_forward_that_differentiates_is_refused(enabled: bool, training: bool) -> None:
    """It names the line of the forward."""
    model, _ = prepared(Force(enabled))
    model.train(training)
    with pytest.raises(CaptureError, match=r"test_input_gradients\.py:\d+: Force\.forward differentiates.*grad\(\)"):
        model(X)


def test_adversarial_training_with_a_copy() -> None:
    """Examples from a copy of the model on the host, and training on the device, give the native weights."""

    def loop(model: nn.Module, optimizer: Any, captured: bool) -> List[torch.Tensor]:
        losses = []
        for _ in range(3):
            x = inputs()
            attacked = copy.deepcopy(model) if captured else model
            (gradient,) = torch.autograd.grad(F.cross_entropy(attacked(x), Y), x)
            losses.append(F.cross_entropy(model((x + 0.1 * gradient.sign()).detach()), Y))
            losses[-1].backward()
            optimizer.step()
            optimizer.zero_grad()
        return [loss.detach() for loss in losses]

    native = network()
    expected = loop(native, torch.optim.SGD(native.parameters(), lr=0.1), captured=False)
    model, optimizer = prepared(network())
    found = loop(model, optimizer, captured=True)
    torch.testing.assert_close(torch.stack(found), torch.stack(expected))
    torch.testing.assert_close(model.state_dict(), native.state_dict())


def test_gradients_that_no_update_follows_are_a_copys() -> None:
    """Those of the model itself are refused with that, as for the Fisher information of a network."""

    def squares(model: nn.Module) -> List[torch.Tensor]:
        model.zero_grad()
        F.cross_entropy(model(X), Y).backward()
        return [weight.grad.clone() ** 2 for weight in model.parameters() if weight.grad is not None]

    def train(model: nn.Module, optimizer: Any) -> None:
        for _ in range(2):
            optimizer.zero_grad()
            F.cross_entropy(model(X), Y).backward()
            optimizer.step()

    native = network()
    train(native, torch.optim.SGD(native.parameters(), lr=0.1))
    model = network()
    optimizer = ipu_prepare(torch.optim.SGD(model.parameters(), lr=0.1), model)
    train(model, optimizer)
    found = squares(copy.deepcopy(model))
    torch.testing.assert_close(found, squares(native))
    train(model, optimizer)
    assert len(squares(model)) == len(found)
    with pytest.raises(CaptureError, match=r"no update follows are those of copy\.deepcopy\(model\)"):
        model.zero_grad()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(torch.tanh(self.norm(self.first(x))))
        return found


Iterate = Callable[[nn.Module, torch.optim.Optimizer], Optional[torch.Tensor]]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor = X) -> None:
    optimizer.zero_grad()
    F.cross_entropy(model(x), Y).backward()
    optimizer.step()


def signed(model: nn.Module, optimizer: torch.optim.Optimizer) -> Optional[torch.Tensor]:
    x = inputs()
    F.cross_entropy(model(x), Y).backward()
    assert x.grad is not None
    train(model, optimizer, (x + 0.1 * x.grad.sign()).detach())
    return x.grad


def projected(model: nn.Module, optimizer: torch.optim.Optimizer) -> Optional[torch.Tensor]:
    delta = torch.zeros_like(X).requires_grad_()
    for _ in range(2):
        F.cross_entropy(model(X + delta), Y).backward()
        assert delta.grad is not None
        with torch.no_grad():
            delta.add_(0.05 * delta.grad.sign()).clamp_(-0.1, 0.1)
        delta.grad.zero_()
    train(model, optimizer, (X + delta).detach())
    return delta.detach()


def asked(model: nn.Module, optimizer: torch.optim.Optimizer) -> Optional[torch.Tensor]:
    x, scale = inputs(), torch.ones(6).requires_grad_()
    found = torch.autograd.grad(F.cross_entropy(model(x * scale), Y), [x, scale])
    train(model, optimizer)
    return torch.cat([each.flatten() for each in found])


def asked_with_hooks(model: nn.Module, optimizer: torch.optim.Optimizer) -> Optional[torch.Tensor]:
    """PyTorch calls each hook once."""
    x, weight = inputs(), model.get_parameter("first.weight")
    hooks = [each.register_hook(lambda gradient: 2 * gradient) for each in (x, weight)]
    found = torch.autograd.grad(F.cross_entropy(model(x), Y), [x, weight])
    for hook in hooks:
        hook.remove()
    train(model, optimizer)
    return torch.cat([each.flatten() for each in found])


def both(model: nn.Module, optimizer: torch.optim.Optimizer) -> Optional[torch.Tensor]:
    """One backward pass has the gradients of weights, of an input, and of one that the host alone uses."""
    x, other = inputs(), inputs()
    optimizer.zero_grad()
    (F.cross_entropy(model(x), Y) + other.pow(2).mean()).backward()
    optimizer.step()
    assert x.grad is not None and other.grad is not None
    return x.grad + other.grad


def salient(model: nn.Module, optimizer: torch.optim.Optimizer) -> Optional[torch.Tensor]:
    train(model, optimizer)
    x = inputs()
    model.eval()(x).max(1)[0].sum().backward()
    model.train()
    return x.grad


def retained(model: nn.Module, optimizer: torch.optim.Optimizer) -> Optional[torch.Tensor]:
    x = inputs()
    optimizer.zero_grad()
    loss = F.cross_entropy(model(torch.tanh(x)), Y)
    loss.backward(retain_graph=True)
    loss.backward()
    optimizer.step()
    return x.grad


def hooked(model: nn.Module, optimizer: torch.optim.Optimizer) -> Optional[torch.Tensor]:
    x, seen = inputs(), []
    x.register_hook(seen.append)
    train(model, optimizer, x)
    return seen[0]


def frozen(model: nn.Module, optimizer: torch.optim.Optimizer) -> Optional[torch.Tensor]:
    x = inputs()
    model.requires_grad_(False)
    F.cross_entropy(model(x), Y).backward()
    model.requires_grad_(True)
    train(model, optimizer)
    return x.grad


def read_first(model: nn.Module, optimizer: torch.optim.Optimizer) -> Optional[torch.Tensor]:
    x = inputs()
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x * 2), Y)
    value = loss.item()
    loss.backward()
    optimizer.step()
    assert x.grad is not None
    return x.grad + value


LOOPS: Dict[str, Iterate] = {
    each.__name__: each
    for each in (signed, projected, asked, asked_with_hooks, both, salient, retained, hooked, frozen, read_first)
}


def results(iterate: Iterate, update: Optional[str]) -> Tuple[List[Any], Dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if update is not None:
        ipu_prepare(optimizer, model, config=IPUConfig(update=update))
    found = [iterate(model, optimizer) for _ in range(3)]
    return found, {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("update", ["auto", "host"])
@pytest.mark.parametrize("name", LOOPS)
def test_updates_on_the_host_have_them(name: str, update: str) -> None:
    """PyTorch carries them on through the tensors of the host."""
    expected, found = results(LOOPS[name], None), results(LOOPS[name], update)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("update", ["auto", "host"])
@pytest.mark.parametrize("is_parameter", [True, False])
def test_an_image_is_optimised(is_parameter: bool, update: str) -> None:
    """The model is frozen; the optimizer holds the image alone."""

    def image(captures: bool) -> torch.Tensor:
        torch.manual_seed(0)
        model = Net().eval().requires_grad_(False)
        x: torch.Tensor = nn.Parameter(X.clone()) if is_parameter else inputs()
        optimizer = torch.optim.Adam([x], lr=0.1)
        if captures:
            ipu_prepare(optimizer, model, config=IPUConfig(update=update))
        for _ in range(3):
            optimizer.zero_grad()
            (F.cross_entropy(model(x), Y) + 0.1 * x.abs().mean()).backward()
            optimizer.step()
            with torch.no_grad():
                x.clamp_(-1, 1)
        return x.detach().clone()

    torch.testing.assert_close(image(True), image(False), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("clears", ["before", "after"])
def test_adversarial_examples_that_begin_late(clears: str) -> None:
    """Updates move to the host at the first one; the gradients of earlier updates are gone, and cleared unused."""

    def losses(captures: bool) -> List[float]:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if captures:
            ipu_prepare(optimizer, model, config=IPUConfig(update="auto"))
        seen = []
        for number in range(12):
            x = inputs()
            if number == 10:
                (slope,) = torch.autograd.grad(F.cross_entropy(model(x), Y), x)
                x = x + 0.1 * slope.sign()
            if clears == "before":
                optimizer.zero_grad()
            loss = F.cross_entropy(model(x.detach()), Y)
            loss.backward()
            optimizer.step()
            if clears == "after":
                optimizer.zero_grad()
            seen.append(loss.item())
        return seen

    assert losses(True) == pytest.approx(losses(False), rel=1e-4)


def test_gradients_of_results_are_refused() -> None:
    """The host has no graph of them."""

    def step(model: Any, optimizer: torch.optim.Optimizer) -> Optional[torch.Tensor]:
        hidden = model.first(X)
        loss = F.cross_entropy(model.last(torch.tanh(model.norm(hidden))), Y)
        return torch.autograd.grad(loss, hidden)[0]

    with pytest.raises(CaptureError, match="asks for gradients that exist on the device alone"):
        results(step, "host")


def test_a_fused_update_refuses_hooks_on_inputs() -> None:
    """They would never run."""
    with pytest.raises(CaptureError, match=r"a fused update does not compute them.*update='host'"):
        results(hooked, "device")
