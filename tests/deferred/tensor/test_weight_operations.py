"""Losses that are computed from weights themselves, besides by calls of the model, train to PyTorch's numbers."""

from __future__ import annotations

import copy
from typing import Any, Callable, List, Optional, Tuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ignite_ipu import IPUConfig, ipu_prepare
from ignite_ipu.deferred import CaptureError

X = torch.randn(24, 6, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()
BATCHES = list(zip(X.split(8), Y.split(8)))
LossOf = Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]


class Network(nn.Sequential):
    """A model with parameters beside it, as for the weights of several losses."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2))
        self.__dict__["beside"] = nn.Parameter(torch.tensor([0.5, -0.5]))
        self.__dict__["before"] = copy.deepcopy(nn.ModuleList([self[0], self[2]]))


def made(captures: bool, beside: bool = False, **sgd: Any) -> Tuple[Any, Any]:
    model = Network()
    parameters = [*model.parameters(), *([model.beside] if beside else [])]
    optimizer = torch.optim.SGD(parameters, **{"lr": 0.1, "momentum": 0.9, **sgd})
    return model, ipu_prepare(optimizer, model) if captures else optimizer


def trained(captures: bool, loss_of: LossOf, beside: bool = False) -> List[torch.Tensor]:
    """Return the losses and weights of six updates, between which there is an evaluation with gradients."""
    model, optimizer = made(captures, beside)
    found = []
    for _ in range(2):
        for x, y in BATCHES:
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            found.append(loss.detach())
        model.eval()
        found.append(torch.tensor(sum(loss_of(model, x, y).item() for x, y in BATCHES)))
        model.train()
    return found + [each.detach().clone() for each in (*model.parameters(), model.beside)]


def same(loss_of: LossOf, beside: bool = False) -> None:
    torch.testing.assert_close(trained(True, loss_of, beside), trained(False, loss_of, beside), rtol=1e-5, atol=1e-6)


def sum_of_norms(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x), y) + 0.05 * sum(p.abs().sum() + p.pow(2).sum() for p in model.parameters())


def before_the_call(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    penalty = torch.tensor(0.0, requires_grad=True)
    for parameter in model.parameters():
        penalty = penalty + torch.norm(parameter, 1)
    return 0.05 * penalty + F.cross_entropy(model(x), y)


def in_place(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss = torch.zeros(())
    for name, parameter in model.named_parameters():
        if name.endswith("weight"):
            loss += parameter.abs().mean()
    loss += F.cross_entropy(model(x), y)
    return loss


def orthogonal(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    weight = model[0].weight
    return F.cross_entropy(model(x), y) + (weight @ weight.T - torch.eye(4)).pow(2).sum()


def proximal(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    old = model.before.parameters()  # which require unused gradients
    return F.cross_entropy(model(x), y) + 0.1 * sum((p - q).norm() for p, q in zip(model.parameters(), old))


def tied(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    codes = torch.tanh(F.linear(x, model[0].weight))
    return F.cross_entropy(model(x), y) + F.mse_loss(codes @ model[0].weight, x)


def all_at_once(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x), y) + 0.1 * nn.utils.parameters_to_vector(model.parameters()).norm()


def forward_alone(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model.forward(x), y)


def layer_by_layer(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    for layer in model.children():
        x = layer(x)
    return F.cross_entropy(x, y)


def looks(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Detached, without gradients, or read as a number, a norm is a number like others."""
    with torch.no_grad():
        norm = sum(p.norm() for p in model.parameters())
    pruned = model[0].weight[model[0].weight.abs() > 0.1].sum().item() + model[2].weight.max().item()
    return F.cross_entropy(model(x), y) * (1 + norm + pruned) + model[0].bias.norm().detach()


@pytest.mark.parametrize(
    "loss_of",
    [
        *(sum_of_norms, before_the_call, in_place, orthogonal, proximal, tied, all_at_once),
        *(forward_alone, layer_by_layer, looks),
    ],
)
def test_losses_of_weights(loss_of: LossOf) -> None:
    """Before or after the model's call, by any functions, evaluated with gradients in between."""
    same(loss_of)


def uncertain(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    penalty = model.beside.sum()
    scores = model(x)
    losses = torch.stack([F.cross_entropy(scores, y), scores.square().mean()])
    return (torch.exp(-model.beside) * losses).sum() + penalty


def test_parameters_of_no_module() -> None:
    """In the optimizer of the model they are trained with it."""
    same(uncertain, beside=True)


def test_parameters_with_an_optimizer_of_their_own() -> None:
    """Clamped by the loop after each step, as temperatures are."""

    def ends(captures: bool) -> List[float]:
        model, optimizer = made(captures)
        own = torch.optim.Adam([model.beside], lr=0.1)
        if captures:
            ipu_prepare(own)
        for x, y in BATCHES:
            optimizer.zero_grad(), own.zero_grad()
            F.cross_entropy(model(x) * model.beside.exp(), y).backward()
            optimizer.step(), own.step()
            with torch.no_grad():
                model.beside.clamp_(-0.45, 0.55)
        return [*model.beside.tolist(), model[0].weight.sum().item()]

    assert ends(True) == pytest.approx(ends(False), rel=1e-5)


def test_gradients_and_accumulation() -> None:
    """Importances from gradients, consolidated weights, and two micro-batches for an update."""

    def ends(captures: bool) -> List[torch.Tensor]:
        model, optimizer = made(captures)
        importance = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
        for x, y in BATCHES:
            model.zero_grad()
            F.cross_entropy(model(x), y).backward()
            for name, parameter in model.named_parameters():
                importance[name] += parameter.grad.detach() ** 2
        model.zero_grad()
        old = {name: parameter.clone().detach() for name, parameter in model.named_parameters()}
        for number, (x, y) in enumerate([*BATCHES, *BATCHES[:1]]):
            drift = sum((importance[n] * (p - old[n]).pow(2)).sum() for n, p in model.named_parameters())
            ((F.cross_entropy(model(x), y) + 100 * drift) / 2).backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()
        return [parameter.detach().clone() for parameter in model.parameters()]

    torch.testing.assert_close(ends(True), ends(False), rtol=1e-5, atol=1e-6)


def test_values_are_those_of_their_time() -> None:
    """Values computed before updates and edits are kept, at any time of the read."""

    def found(captures: bool) -> List[float]:
        model, optimizer = made(captures)
        norms, copies = [model[0].weight.norm()], [model[0].weight * 1]
        for x, y in BATCHES:
            optimizer.zero_grad()
            sum_of_norms(model, x, y).backward()  # type: ignore[no-untyped-call]
            norms.append(model[0].weight.norm())
            optimizer.step()
            copies.append(model[0].weight * 1)
            nn.init.ones_(model[2].bias)
            norms.append(model[2].bias.norm())
        norms += [(copy - model[0].weight).abs().sum() for copy in copies]
        with torch.no_grad():
            model[2].weight.div_(norms[0])
        return [each.item() for each in (*norms, model[2].weight.sum())]

    assert found(True) == pytest.approx(found(False), rel=1e-5, abs=1e-6)


def test_a_loss_of_earlier_weights_is_refused() -> None:
    """The device has them no more; PyTorch would take gradients through them."""
    model, optimizer = made(True)
    earlier = model[0].weight * 2
    for x, y in BATCHES[:1]:
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        with pytest.raises(CaptureError, match=r"computed at .*\.py:\d+ from the weight 0\.weight, which was updated"):
            (F.cross_entropy(model(x), y) + (model[0].weight - earlier).sum()).backward()


@pytest.mark.parametrize("update", ["device", "auto"])
def test_a_dropped_loss_of_weights_that_were_updated_since(update: Any) -> None:
    """The call's results are known, as it has written statistics; the weight of before is not, on the device alone."""

    def losses(captures: bool) -> List[torch.Tensor]:
        torch.manual_seed(0)
        model, scale = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)), nn.Parameter(torch.ones(()))
        optimizer = torch.optim.SGD([*model.parameters(), scale], lr=0.1)
        if captures:
            ipu_prepare(optimizer, model, config=IPUConfig(update=update))
        found = []
        for x, y in BATCHES[:2]:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x) * scale.exp(), y)
            loss.backward()  # type: ignore[no-untyped-call]
            found.append(loss.detach())
        optimizer.step()
        return found

    first, last = losses(True)
    expected = losses(False)
    torch.testing.assert_close(last.item(), expected[1].item(), rtol=1e-5, atol=1e-6)
    if update == "device":
        with pytest.raises(CaptureError, match="have changed since"):
            first.item()
    else:
        torch.testing.assert_close(first.item(), expected[0].item(), rtol=1e-5, atol=1e-6)


def test_gradients_of_what_is_no_weight_are_refused() -> None:
    """Of a tensor that only requires them, as soon as they are used."""
    model, optimizer = made(True)
    x = BATCHES[0][0].clone().requires_grad_()
    model(x).sum().backward()
    optimizer.step()
    with pytest.raises(CaptureError, match=r"no weight of a captured model\. .* Gradients of inputs come to the host"):
        print(x.grad.sum())  # type: ignore[union-attr]


def test_everything_is_given_back() -> None:
    """With the capture ends that functions of weights are recorded."""
    from ignite_ipu.deferred.model.capturing import captured

    model, optimizer = made(True, beside=True)
    uncertain(model, *BATCHES[0]).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    capture = captured(model)
    assert capture is not None
    capture.close()
    assert {type(each) for each in (*model.parameters(), model.beside)} == {nn.Parameter}
    assert type(model.beside * 2) is torch.Tensor


@pytest.mark.parametrize("update", ["device", "auto", "host"])
def test_a_parameter_of_no_module_has_a_loss_and_an_optimizer_of_its_own(update: Any) -> None:
    """As the temperature of soft actor-critic, which its loss weighs values of a finished update with."""

    def played(captures: bool) -> List[torch.Tensor]:
        model, temperature = Network(), nn.Parameter(torch.zeros(1))
        optimizers = torch.optim.SGD(model.parameters(), 0.1), torch.optim.Adam([temperature], 0.1)
        if captures:
            ipu_prepare(*optimizers, model, config=IPUConfig(update=update))
        factor, found = torch.tensor(0.2), []

        def step(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            found.append(loss.detach())

        for x, y in BATCHES * 2:
            scores = model(x)
            entropies = -F.log_softmax(scores, dim=1).mean(dim=1)
            step(optimizers[0], (factor * entropies).mean() + F.cross_entropy(scores, y))
            step(optimizers[1], -(temperature * (entropies - 0.5).detach()).mean())
            factor = temperature.exp().detach()
        return [*found, temperature.detach().clone(), *[each.detach().clone() for each in model.parameters()]]

    torch.testing.assert_close(played(True), played(False), rtol=1e-5, atol=1e-6)


def test_a_parameter_of_no_module_has_the_settings_of_its_optimizer() -> None:
    """Also where a model with others was captured later; an optimizer that was prepared without a model has none."""
    temperature = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([temperature], 0.1)
    models = Network(), Network()
    ipu_prepare(optimizer, models[0], config=IPUConfig(update="host"))
    ipu_prepare(torch.optim.SGD(models[1].parameters(), 0.1), models[1], config=IPUConfig(update="device"))
    (temperature * torch.tensor(3.0)).sum().backward()
    optimizer.step()
    assert temperature.item() == pytest.approx(-0.3) and temperature.grad == torch.tensor([3.0])
    alone = nn.Parameter(torch.zeros(1))
    kept = ipu_prepare(torch.optim.SGD([alone], 0.1))
    with pytest.raises(CaptureError, match="Give the optimizer of a parameter of no module to the same call"):
        (alone * 2).sum().backward()
    assert kept.param_groups


@pytest.mark.parametrize("first", ["weight", "gradient"])
@pytest.mark.parametrize("update", ["device", "auto", "host"])
def test_a_loss_with_the_gradients_of_the_last_update(update: str, first: str) -> None:
    """They are constants of the loss, with the weight as the first factor or the second."""

    def played(captures: bool) -> List[torch.Tensor]:
        model = Network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if captures:
            ipu_prepare(optimizer, model, config=IPUConfig(update=update))
        found = []
        for number, (x, y) in enumerate(BATCHES):
            loss = F.cross_entropy(model(x), y)
            for each in model.parameters() if number else ():
                assert each.grad is not None
                loss = loss + (each * each.grad if first == "weight" else each.grad * each).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.detach())
        return [*found, *[each.detach() + 0 for each in model.parameters()]]

    torch.testing.assert_close(played(True), played(False), rtol=1e-4, atol=1e-6)


def balanced(update: Optional[str], penalty: bool) -> List[torch.Tensor]:
    """Return the loss weights of GradNorm, or factors by the gradients of a penalty, and the model's weights."""
    model = Network()
    model.scales = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    doubled = model.scales.register_hook(lambda gradient: 2 * gradient)
    if update is not None:
        ipu_prepare(optimizer, model, config=IPUConfig(update=update))
    found = []
    for x, y in BATCHES * 2:
        optimizer.zero_grad()
        output = model(x)
        losses = torch.stack([F.cross_entropy(output, y), output.pow(2).mean()])
        (model.scales.detach() * losses).sum().backward(retain_graph=True)
        if penalty:
            norm = (model.scales * model[0].weight.norm()).sum()
            first = torch.autograd.grad(norm, [model.scales, model[0].weight], retain_graph=True)
            second = torch.autograd.grad(norm, [model.scales, model[2].weight], allow_unused=True)
            assert second[1] is None
            found += [*first, second[0]]
        else:
            gradients = [torch.autograd.grad(loss, model[0].weight, retain_graph=True)[0] for loss in losses]
            norms = torch.stack([(scale * each).norm() for scale, each in zip(model.scales, gradients)])
            spread = (norms - norms.mean().detach()).abs().sum()
            (model.scales.grad,) = torch.autograd.grad(spread, model.scales)
            found.append(spread.detach())
        optimizer.step()
    doubled.remove()
    return [each.clone() for each in found] + [each.detach().clone() for each in model.parameters()]


@pytest.mark.parametrize("penalty", [False, True])
@pytest.mark.parametrize("update", ["auto", "host"])
def test_gradients_of_a_value_of_weights_alone(update: str, penalty: bool) -> None:
    """The host has its graph: `torch.autograd.grad` gives PyTorch's values, by hooks that are called once."""
    torch.testing.assert_close(balanced(update, penalty), balanced(None, penalty), rtol=1e-4, atol=1e-6)


WRITES: List[Callable[[Any, Any], Any]] = [
    lambda model, optimizer: None,
    lambda model, optimizer: model.load_state_dict({name: 2 * each for name, each in model.state_dict().items()}),
    lambda model, optimizer: model(X),
    lambda model, optimizer: (optimizer.zero_grad(), model(X).square().mean().backward(), optimizer.step()),
    lambda model, optimizer: model[0].bias.data.add_(1.0),
]


@pytest.mark.parametrize("update", ["device", "auto", "host"])
@pytest.mark.parametrize("later", range(len(WRITES)))
@pytest.mark.parametrize("written", ["weight", "bias"])
@pytest.mark.parametrize("together", [False, True])
def test_a_value_of_weights_that_were_written_since(together: bool, written: str, later: int, update: Any) -> None:
    """It has the weights of its time, whatever else the loop writes before it is read, or is refused on the device."""

    def seen(captured: bool) -> List[float]:
        model = Network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if captured:
            ipu_prepare(optimizer, model, config=IPUConfig(update=update))
        found = []
        for _ in range(2):
            optimizer.zero_grad()
            model(X).square().mean().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            first = model[0]
            if together:
                value = F.linear(torch.ones(1, 6), first.weight, first.bias).sum()  # type: ignore[arg-type]
            else:
                value = first.weight.pow(2).sum() * first.bias.sum()  # type: ignore[operator,union-attr]
            getattr(first, written).data[0] = 3.0
            WRITES[later](model, optimizer)
            if captured and update != "host":
                with pytest.raises(CaptureError, match="weights or buffers of Network were written after that"):
                    value.item()
                break
            found.append(value.item())
        return found

    assert seen(True) == pytest.approx(seen(False) if update == "host" else [], rel=1e-5)


@pytest.mark.parametrize("update", ["auto", "device", "host"])
@pytest.mark.parametrize("reads", [False, True])
def test_a_value_of_weights_is_read_between_two_losses(reads: bool, update: str) -> None:
    """Gradients flow through it to the weights all the same."""
    found = []
    for prepared in (False, True):
        model: Any = Network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if prepared:
            ipu_prepare(model, optimizer, config=IPUConfig(update=update))
        seen: List[Any] = []
        found.append(seen)
        for x, y in BATCHES:
            first = F.cross_entropy(model(x), y)
            hidden = F.linear(x - 1, model[0].weight, model[0].bias)
            first.backward()  # type: ignore[no-untyped-call]
            if reads:
                seen.append(hidden.tolist())
            last = F.cross_entropy(F.linear(torch.tanh(hidden), model[2].weight), y)
            last.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            seen.append((first.item(), last.item(), copy.deepcopy(model.state_dict())))
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("update", ["auto", "device", "host"])
def test_gradients_are_read_of_a_loss_that_reads_statistics_of_a_part(update: str) -> None:
    """The loop calls the parts of a model: normalisations are functions, and one reads what another has written."""
    found = []
    for prepared in (False, True):
        torch.manual_seed(0)
        part = nn.Sequential(nn.Linear(6, 4, bias=False), nn.BatchNorm1d(4), nn.Tanh())
        model = nn.Sequential(part, nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if prepared:
            ipu_prepare(model, optimizer, config=IPUConfig(update=update))
        first = F.cross_entropy(model[1](part(BATCHES[0][0])), Y[:8])
        model.eval()
        second = F.cross_entropy(model[1](part(BATCHES[1][0])), Y[8:16])
        model.train()
        second.backward()  # type: ignore[no-untyped-call]
        first.backward()  # type: ignore[no-untyped-call]
        gradients = [each.grad.clone() for each in model.parameters() if each.grad is not None]
        optimizer.step()
        found.append((gradients, copy.deepcopy(model.state_dict())))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-6)
