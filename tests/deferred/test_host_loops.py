"""Loops of many kinds whose updates PyTorch makes on the host, against the same loops in eager PyTorch."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ignite_ipu import IPUConfig, ipu_prepare
from tests.half_precision import needs_half_precision

X = torch.randn(48, 6, generator=torch.Generator().manual_seed(1))
Y = torch.arange(48) % 3
BATCHES = [(X[start : start + 8], Y[start : start + 8]) for start in range(0, 48, 8)]
LOOPS = {}


def loop(function):
    """Try a function; it is called with a function that prepares models and optimizers, and returns its results."""
    LOOPS[function.__name__] = function
    return function


def network(norm=False):
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5) if norm else nn.Tanh(), nn.Tanh(), nn.Linear(5, 3))


def left(*models):
    """Return copies of the states and gradients of models."""
    gradients = [[None if each.grad is None else each.grad.clone() for each in model.parameters()] for model in models]
    return [copy.deepcopy(dict(model.state_dict())) for model in models], gradients


def step(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()


@loop
def accumulated_losses_that_are_read_and_divided_in_place(prepare):
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    prepare(optimizer, model)
    seen = []
    for number, (x, y) in enumerate(BATCHES):
        loss = F.cross_entropy(model(x), y)
        seen.append(loss.item())
        loss /= 2
        loss.backward()
        if number % 2:
            seen.append(torch.norm(torch.stack([each.grad.norm() for each in model.parameters()])).item())
            optimizer.step()
            optimizer.zero_grad()
    return seen, *left(model)


@loop
def scores_that_are_read_and_written_in_place(prepare):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    prepare(optimizer, model)
    seen = []
    for x, y in BATCHES:
        optimizer.zero_grad()
        scores = model(x)
        seen.append(scores.argmax(-1).tolist())
        scores[torch.arange(8), y] -= 0.5
        scores.mul_(2)
        F.cross_entropy(scores, y).backward()
        seen.append(model[0].weight.grad.norm().item())
        optimizer.step()
        with torch.no_grad():
            seen.append(scores.add_(1).sum().item())
    return seen, *left(model)


@loop
def adversarial_networks(prepare):
    generator = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6))
    critic = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 1))
    generating = torch.optim.NAdam(generator.parameters(), 0.01)
    judging = torch.optim.RMSprop(critic.parameters(), 0.01)
    prepare(generating, judging, generator, critic)
    seen = []
    for x, _ in BATCHES:
        judging.zero_grad()
        real = F.softplus(-critic(x)).mean()
        real.backward()
        fake = generator(torch.randn(8, 4))
        unreal = F.softplus(critic(fake.detach())).mean()
        unreal.backward()
        judging.step()
        generating.zero_grad()
        fooled = F.softplus(-critic(fake)).mean()
        fooled.backward()
        generating.step()
        seen.append([real.item(), unreal.item(), fooled.item()])
    return seen, left(generator, critic)


@loop
def tied_weights(prepare):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
            self.two.weight = self.one.weight

        def forward(self, x):
            return self.head(self.two(torch.tanh(self.one(x))))

    model = Tied()
    optimizer = torch.optim.Adamax(model.parameters())
    prepare(optimizer, model)
    return [step(model, optimizer, *batch) for batch in BATCHES], left(model)


@loop
def layers_frozen_and_trained_later(prepare):
    model = network(norm=True)
    model[0].requires_grad_(False)
    optimizer = torch.optim.NAdam(model.parameters(), 0.01)
    prepare(optimizer, model)
    seen = [step(model, optimizer, *batch) for batch in BATCHES[:3]]
    model[0].requires_grad_(True)
    seen += [step(model, optimizer, *batch) for batch in BATCHES[3:]]
    return seen, left(model)


@loop
def a_parameter_of_no_module(prepare):
    model, temperature = network(), nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.Rprop([*model.parameters(), temperature])
    prepare(optimizer, model)
    seen = []
    for x, y in BATCHES:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x) * temperature.exp(), y) + temperature.square().sum()
        loss.backward()
        optimizer.step()
        seen.append((loss.item(), temperature.grad.clone(), temperature.detach().clone()))
    return seen, left(model)


@loop
def a_group_of_parameters_added_later(prepare):
    model = network()
    optimizer = torch.optim.Adadelta(model[0].parameters())
    prepare(optimizer, model)
    seen = [step(model, optimizer, *batch) for batch in BATCHES[:2]]
    optimizer.add_param_group({"params": list(model[3].parameters()), "lr": 0.5})
    seen += [step(model, optimizer, *batch) for batch in BATCHES[2:]]
    return seen, left(model)


@loop
def two_optimizers_of_one_model(prepare):
    model = network(norm=True)
    first = torch.optim.SGD(model[0].parameters(), 0.1)
    second = torch.optim.RAdam([*model[1].parameters(), *model[3].parameters()], 0.01)
    prepare(first, second, model)
    seen = []
    for number, (x, y) in enumerate(BATCHES):
        first.zero_grad()
        if number % 2:
            second.zero_grad(set_to_none=False)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        first.step()
        if number % 2:
            second.step()
        seen.append(loss.item())
    return seen, left(model)


@loop
def gradients_cleared_in_parts(prepare):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    prepare(optimizer, model)
    for number, (x, y) in enumerate(BATCHES):
        model[3].zero_grad(set_to_none=False) if number % 2 else model[0].zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return left(model)


@loop
def several_calls_for_a_loss(prepare):
    model = network(norm=True)
    optimizer = torch.optim.Adam(model.parameters(), 0.01, amsgrad=True)
    prepare(optimizer, model)
    for (x, _), (y, _) in zip(BATCHES[::2], BATCHES[1::2]):
        optimizer.zero_grad()
        one, two = model(x), model(y)
        ((one - two).square().mean() + 0.1 * one.square().mean()).backward()
        optimizer.step()
    return left(model)


@loop
def calls_that_go_backward_after_both_were_made(prepare):
    model = network(norm=True)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    prepare(optimizer, model)
    for (x, y), (other, labels) in zip(BATCHES[::2], BATCHES[1::2]):
        optimizer.zero_grad()
        one, two = F.cross_entropy(model(x), y), F.cross_entropy(model(other), labels)
        one.backward()
        two.backward()
        optimizer.step()
    return left(model)


@loop
def an_encoder_and_a_decoder(prepare):
    encoder, decoder = nn.Linear(6, 4), nn.Linear(4, 6)
    optimizer = torch.optim.Adagrad([*encoder.parameters(), *decoder.parameters()], 0.01)
    prepare(optimizer, encoder, decoder)
    for x, _ in BATCHES:
        optimizer.zero_grad()
        F.mse_loss(decoder(torch.tanh(encoder(x))), x).backward()
        optimizer.step()
    return left(encoder, decoder)


@loop
def an_average_of_the_weights(prepare):
    model = network(norm=True)
    optimizer = torch.optim.RAdam(model.parameters(), 0.01)
    prepare(optimizer, model)
    average = torch.optim.swa_utils.AveragedModel(model)
    for batch in BATCHES:
        step(model, optimizer, *batch)
        average.update_parameters(model)
    return left(model), average.state_dict()


@loop
def weights_written_by_hand(prepare):
    """In place, through `data`, and by other memory."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    prepare(optimizer, model)
    first, second, *others = model.parameters()
    seen = []
    for batch in BATCHES:
        seen.append(step(model, optimizer, *batch))
        with torch.no_grad():
            first.mul_(0.9)
        second.data.clamp_(-0.1, 0.1)
        for each in others:
            each.data = each.data * 0.9
    return seen, left(model)


@loop
def weights_moved_along_their_gradients_and_back(prepare):
    """Sharpness-aware minimisation."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    prepare(optimizer, model)
    seen = []
    for x, y in BATCHES:
        F.cross_entropy(model(x), y).backward()
        before = [each.detach().clone() for each in model.parameters()]
        with torch.no_grad():
            for each in model.parameters():
                each.add_(each.grad, alpha=0.5)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        with torch.no_grad():
            for each, value in zip(model.parameters(), before):
                each.copy_(value)
        optimizer.step()
        optimizer.zero_grad()
        seen.append(loss.item())
    return seen, left(model)


@loop
def a_penalty_on_slopes_of_a_copy(prepare):
    """The gradients of the copy are its own: PyTorch copies none."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    prepare(optimizer, model)
    for x, y in BATCHES:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        twin = copy.deepcopy(model)
        probe = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(twin(probe).sum(), probe, create_graph=True)
        slope.pow(2).mean().backward()
        for each, other in zip(model.parameters(), twin.parameters()):
            if other.grad is not None:
                each.grad += other.grad
        optimizer.step()
    return left(model)


@loop
def a_state_loaded_in_between(prepare):
    model = network(norm=True)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    prepare(optimizer, model)
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    seen = [step(model, optimizer, *batch) for batch in BATCHES[:3]]
    model.load_state_dict(weights)
    optimizer.load_state_dict(state)
    seen += [step(model, optimizer, *batch) for batch in BATCHES]
    return seen, left(model), optimizer.state_dict()["state"]


@loop
def a_checkpoint_resumed(prepare):
    model = network(norm=True)
    optimizer = torch.optim.NAdam(model.parameters(), 0.01)
    prepare(optimizer, model)
    seen = [step(model, optimizer, *batch) for batch in BATCHES[:3]]
    other = network(norm=True)
    resumed = torch.optim.NAdam(other.parameters(), 0.3)
    other.load_state_dict(copy.deepcopy(model.state_dict()))
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    prepare(resumed, other)
    seen += [step(other, resumed, *batch) for batch in BATCHES[3:]]
    return seen, left(other), resumed.state_dict()["state"]


@loop
def penalties_on_weights(prepare):
    """As a part of the loss, and alone."""
    model = network()
    optimizer = torch.optim.Adamax(model.parameters(), 0.01)
    prepare(optimizer, model)
    seen = []
    for x, y in BATCHES:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y) + 0.01 * sum(each.square().sum() for each in model.parameters())
        loss.backward()
        penalty = 0.1 * sum(each.abs().sum() for each in model.parameters())
        penalty.backward()
        optimizer.step()
        seen.append((loss.item(), penalty.item()))
    return seen, left(model)


@loop
def calls_without_backward(prepare):
    model = network(norm=True)
    optimizer = torch.optim.Adamax(model.parameters(), 0.01)
    prepare(optimizer, model)
    seen = []
    for number, (x, y) in enumerate(BATCHES):
        with torch.no_grad():
            seen.append(model(x * 2).sum().item())
        loss = F.cross_entropy(model(x), y)
        if number % 3 == 1:
            seen.append(loss.item())
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return seen, left(model)


@loop
def branches_of_a_model(prepare):
    """A part that a loss does not depend on is left alone by momentum and decay, as its gradient is None."""

    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(6, 3), nn.Linear(6, 3)

        def forward(self, x, first):
            return self.one(x) if first else self.two(x)

    model = Branches()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.1)
    prepare(optimizer, model)
    for number, (x, y) in enumerate(BATCHES):
        optimizer.zero_grad()
        F.cross_entropy(model(x, number % 2 == 0), y).backward()
        optimizer.step()
    return left(model)


@loop
def gradients_of_two_losses_combined(prepare):
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    prepare(optimizer, model)
    parameters = list(model.parameters())
    for x, y in BATCHES:
        out = model(x)
        found = []
        for loss, retained in ((F.cross_entropy(out, y), True), (out.square().mean(), False)):
            optimizer.zero_grad()
            loss.backward(retain_graph=retained)
            found.append([each.grad.clone() for each in parameters])
        conflict = sum((one * two).sum() for one, two in zip(*found)) < 0
        for parameter, one, two in zip(parameters, *found):
            parameter.grad = one - two if conflict else one + two
        optimizer.step()
    return left(model)


@loop
def half_precision_with_a_scaled_loss(prepare):
    model = network().half()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    prepare(optimizer, model)
    for x, y in BATCHES:
        optimizer.zero_grad()
        (F.cross_entropy(model(x.half()).float(), y) * 64).backward()
        for parameter in model.parameters():
            parameter.grad /= 64
        optimizer.step()
    return [each.grad.dtype is torch.float16 for each in model.parameters()], left(model)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=needs_half_precision if "half" in name else ()) for name in LOOPS]
)
def test_a_loop_trains_as_natively(name):
    found = []
    for captures in (False, True):
        torch.manual_seed(7)
        config = IPUConfig(update="host")
        found.append(LOOPS[name](lambda *given, c=captures, s=config: ipu_prepare(*given, config=s) if c else None))
    rough = {"rtol": 0.05, "atol": 0.05} if "half" in name else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(found[1], found[0], **rough)
