"""A loop written for PyTorch trains on an IPU once its model and optimizer are prepared, to the same weights."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ignite_ipu import IPUConfig, ipu_clip_grad_norm_, ipu_prepare
from ignite_ipu.deferred import CaptureError, captured
from ignite_ipu.emulator.device import device


@pytest.fixture
def batches():
    torch.manual_seed(0)
    return [(torch.randn(size, 4), torch.randint(3, (size,))) for size in (8, 8, 8, 5)]


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def train(model, optimizer, batches, clip=nn.utils.clip_grad_norm_):
    found = []
    for x, y in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        clip(model.parameters(), 0.1)
        optimizer.step()
        found.append(loss.item())
    return found


def test_a_loop_stays_as_it_is(batches):
    """A smaller last batch and clipped gradients, too."""
    model, native = network(), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert ipu_prepare(optimizer, model) is optimizer
    before = device.counters().optimizer_updates
    losses = train(model, optimizer, batches, ipu_clip_grad_norm_)
    assert device.counters().optimizer_updates - before == len(batches)
    expected = train(native, torch.optim.SGD(native.parameters(), lr=0.1), batches)
    assert losses == pytest.approx(expected, rel=1e-5)
    torch.testing.assert_close(dict(model.named_parameters()), dict(native.named_parameters()))


def test_the_model_in_a_wrapper_for_several_gpus_is_captured(batches):
    """Calls of the wrapper train it."""
    model, native = nn.DataParallel(network()), network()
    optimizer = ipu_prepare(torch.optim.SGD(model.parameters(), lr=0.1), model)
    before = device.counters().optimizer_updates
    losses = train(model, optimizer, batches, ipu_clip_grad_norm_)
    assert device.counters().optimizer_updates - before == len(batches)
    assert losses == pytest.approx(train(native, torch.optim.SGD(native.parameters(), lr=0.1), batches), rel=1e-5)
    assert captured(model) is None and captured(model.module) is not None


def test_a_model_whose_named_parameters_method_hides_them(batches):
    """The device has all of its parameters, as of any other class."""

    class Hiding(nn.Linear):
        def named_parameters(self, *args, **kwargs):
            return iter(())

    torch.manual_seed(1)
    model = Hiding(4, 3)
    native, held = copy.deepcopy(model), [model.weight, model.bias]
    optimizer = ipu_prepare(torch.optim.SGD(held, lr=0.1), model)
    before = device.counters().optimizer_updates
    losses = train(model, optimizer, batches, lambda *_: None)
    assert device.counters().optimizer_updates - before == len(batches)
    expected = train(native, torch.optim.SGD([native.weight, native.bias], lr=0.1), batches, lambda *_: None)
    assert losses == pytest.approx(expected, rel=1e-5)
    torch.testing.assert_close(held, [native.weight, native.bias])


def test_a_model_alone_evaluates_on_the_device(batches):
    model = network().eval()
    expected = model(batches[0][0])
    assert ipu_prepare(model) is model
    before = device.counters().device_calls
    with torch.no_grad():
        torch.testing.assert_close(model(batches[0][0]), expected)
    assert device.counters().device_calls > before


def test_what_is_prepared_may_be_prepared_again(batches):
    """As in a function that is called for every epoch; a scheduler's count of steps goes on."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        ipu_prepare(optimizer, model)
        train(model, optimizer, batches, lambda *arguments: None)
    assert len(optimizer._optimizer_step_pre_hooks) <= 2


def test_modules_in_modules(batches):
    """The order in which they are given says nothing."""
    body, head = nn.Linear(4, 8), nn.Linear(8, 3)
    model = nn.Sequential(body, nn.ReLU(), head)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ipu_prepare(optimizer, head, body, model)
    native = copy.deepcopy(model)
    train(model, optimizer, batches, lambda *arguments: None)
    train(native, torch.optim.SGD(native.parameters(), lr=0.1), batches, lambda *arguments: None)
    torch.testing.assert_close(model.state_dict(), native.state_dict())


def test_a_container_stands_for_the_modules_in_it(batches):
    """It has no forward, so the loop calls the modules."""
    parts = nn.ModuleList([nn.Linear(4, 8), nn.ModuleDict({"head": nn.Linear(8, 3)})])
    native = copy.deepcopy(parts)
    for each in (parts, native):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.1)
        if each is parts:
            ipu_prepare(optimizer, each)
        for x, y in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(each[1]["head"](each[0](x)), y).backward()
            optimizer.step()
    torch.testing.assert_close(parts.state_dict(), native.state_dict())


def test_the_host_makes_no_update(batches):
    """Of an unprepared model, where none is captured; nothing would show that its training is slow."""
    model = network()
    optimizer = ipu_prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(CaptureError, match=r"its gradients would be the host's\. .*given to ipu_prepare together"):
        train(model, optimizer, batches, lambda *arguments: None)


def test_torchs_clipping_is_refused(batches):
    """It would find no gradients and clip nothing."""
    model = network()
    optimizer = ipu_prepare(torch.optim.SGD(model.parameters(), lr=0.1), model)
    with pytest.raises(CaptureError, match=r"use ignite_ipu.ipu_clip_grad_norm_\(model.parameters\(\)"):
        train(model, optimizer, batches)


def test_clipping_of_other_parameters_is_torchs():
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([3.0, 4.0])
    assert ipu_clip_grad_norm_([parameter], 1.0).item() == 5
    torch.testing.assert_close(parameter.grad, torch.tensor([0.6, 0.8]))


def test_clipping_of_models_that_are_trained_apart():
    """Together it is PyTorch's, with updates on the host; before backward() there is nothing to clip."""
    found = []
    for update in ("native", "auto", "device"):
        models = [network(), network()]
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
        if update != "native":
            for model, optimizer in zip(models, optimizers):
                ipu_prepare(optimizer, model, config=IPUConfig(update=update))
        every = [parameter for model in models for parameter in model.parameters()]
        assert float(ipu_clip_grad_norm_(every, 0.1)) == 0
        for model in models:
            model(torch.ones(2, 4)).square().sum().backward()
        if update == "device":
            with pytest.raises(CaptureError, match="parameters of Sequential and Sequential, which are trained apart"):
                ipu_clip_grad_norm_(every, 0.1)
            continue
        found.append([ipu_clip_grad_norm_(every, 0.1)])
        for optimizer in optimizers:
            optimizer.step()
        found[-1] += [parameter.detach().clone() for parameter in every]
    torch.testing.assert_close(found[1], found[0])


def test_a_norm_that_is_not_finite_is_an_error_where_the_loop_asks_for_it():
    """Before the update, as in PyTorch."""
    model = network()
    optimizer = ipu_prepare(torch.optim.SGD(model.parameters(), lr=0.1), model, config=IPUConfig(update="auto"))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    (model(torch.ones(2, 4)).sum() * float("inf")).backward()
    with pytest.raises(RuntimeError, match="non-finite"):
        ipu_clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    optimizer.zero_grad()
    torch.testing.assert_close([parameter.detach().clone() for parameter in model.parameters()], before)


def test_natively_nothing_is_captured(monkeypatch, batches):
    monkeypatch.setenv("IGNITE_IPU_BACKEND", "native")
    model = network()
    optimizer = ipu_prepare(torch.optim.SGD(model.parameters(), lr=0.1), model)
    before = device.counters().optimizer_updates
    train(model, optimizer, batches, ipu_clip_grad_norm_)
    assert captured(model) is None
    assert device.counters().optimizer_updates == before


def test_anything_else_is_refused():
    with pytest.raises(TypeError, match="ipu_prepare was given a list"):
        ipu_prepare(network(), [])


@pytest.mark.parametrize("some", [lambda model: model[0].parameters(), lambda model: [*model[0].parameters()]])
def test_clipping_of_some_parameters_is_refused_in_a_later_update(batches, some):
    """A device clips the global norm of all."""
    model = network()
    optimizer = ipu_prepare(torch.optim.SGD(model.parameters(), lr=0.1), model)

    def clip(parameters, max_norm):
        steps.append(parameters)
        return ipu_clip_grad_norm_(some(model) if len(steps) > 2 else parameters, max_norm)

    steps = []
    with pytest.raises(CaptureError, match=r"leaves out 2 trained parameters \(2\.weight"):
        train(model, optimizer, batches, clip)
    assert len(steps) == 3


@pytest.mark.parametrize("joint", [True, False], ids=["one optimizer", "two optimizers"])
def test_models_that_share_a_weight_are_prepared_apart(joint):
    """A loss of the second model is recorded as the loop's own code; its evaluation runs on the device."""

    def trained(prepare):
        torch.manual_seed(3)
        first, second = nn.Linear(4, 4), nn.Linear(4, 4)
        second.weight = first.weight
        if joint:
            optimizers = [torch.optim.Adam([*first.parameters(), second.bias], lr=0.1)]
            prepare(optimizers[0], first, second)
        else:
            optimizers = [torch.optim.Adam(first.parameters(), lr=0.1), torch.optim.Adam([second.bias], lr=0.1)]
            for optimizer, model in zip(optimizers, (first, second)):
                prepare(optimizer, model)
        x, losses = torch.ones(8, 4), []
        for _ in range(3):
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss = second(torch.tanh(first(x))).pow(2).mean()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            losses.append(loss.item())
        second.eval()
        with torch.no_grad():
            return [*losses, second(x).sum().item()]

    before = device.counters().device_calls
    found = trained(ipu_prepare)
    assert device.counters().device_calls - before >= 4
    assert found == pytest.approx(trained(lambda *given: given), rel=1e-5)


@pytest.mark.parametrize("joint", [True, False], ids=["one optimizer", "two optimizers"])
@pytest.mark.parametrize("generator_first", [True, False])
def test_a_generator_and_a_discriminator_with_one_trunk(joint, generator_first):
    """A layer that two models have is trained once; losses of both go back to it."""

    def trained(prepare):
        torch.manual_seed(3)
        trunk, head = nn.Sequential(nn.Linear(4, 8), nn.Tanh()), nn.Linear(8, 4)
        generator, discriminator = nn.Sequential(trunk, head), nn.Sequential(nn.Linear(4, 4), trunk, nn.Linear(8, 1))
        others = [*discriminator[0].parameters(), *discriminator[2].parameters()]
        if joint:
            optimizers = [torch.optim.Adam([*generator.parameters(), *others], lr=0.05)]
            prepare(optimizers[0], generator, discriminator)
        else:
            optimizers = [torch.optim.SGD(others, lr=0.1), torch.optim.SGD(generator.parameters(), lr=0.1)]
            pairs = list(zip(optimizers, (discriminator, generator)))
            for optimizer, model in reversed(pairs) if generator_first else pairs:
                prepare(optimizer, model)
        losses, real = [], torch.linspace(-1, 1, 32).view(8, 4)
        for _ in range(3):
            optimizers[0].zero_grad()
            fake = generator(torch.ones(8, 4))
            loss = F.softplus(discriminator(fake.detach())).mean() + F.softplus(-discriminator(real)).mean()
            loss.backward()
            optimizers[0].step()
            losses.append(loss.item())
            optimizers[-1].zero_grad()
            loss = F.softplus(-discriminator(generator(torch.ones(8, 4)))).mean()
            loss.backward()
            optimizers[-1].step()
            losses.append(loss.item())
        discriminator.eval()
        with torch.no_grad():
            return [*losses, discriminator(torch.ones(8, 4)).sum().item(), trunk[0].weight.sum().item()]

    before = device.counters().device_calls
    found = trained(ipu_prepare)
    assert device.counters().device_calls - before >= 7
    assert found == pytest.approx(trained(lambda *given: given), rel=1e-5)


def test_a_scripted_function_that_makes_a_tensor_is_named_with_its_line():
    @torch.jit.script
    def counted(x):
        return x * torch.arange(x.size(1), device=x.device)

    class Model(nn.Linear):
        def forward(self, x):
            return counted(super().forward(x))

    model = Model(4, 3)
    optimizer = ipu_prepare(torch.optim.SGD(model.parameters(), lr=0.1), model)
    model(torch.ones(2, 4)).sum().backward()
    with pytest.raises(Exception, match=rf"a tensor on the IPU, called at {__file__}:\d+.*Leave torch.jit.script out"):
        optimizer.step()


def test_texts_of_constants_have_their_values():
    """Of tensors that depend on no data, so that a name may be made of them."""

    class Model(nn.Linear):
        def forward(self, x):
            return super().forward(x) * {"3.00": 2.0}[f"{torch.tensor(3.0):.2f}"]

    torch.manual_seed(0)
    model = Model(4, 3)
    expected = model(torch.ones(2, 4)).sum().item()
    optimizer = ipu_prepare(torch.optim.SGD(model.parameters(), lr=0.1), model)
    loss = model(torch.ones(2, 4)).sum()
    loss.backward()
    optimizer.step()
    assert loss.item() == pytest.approx(expected)


@pytest.mark.parametrize("name", ["step", "zero_grad"])
def test_a_method_that_was_replaced_before_is_refused(name):
    """What it calls is the optimizer's own method. A scheduler wraps step() as well, but adds nothing to it."""
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    original = getattr(optimizer, name)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    setattr(optimizer, name, lambda: original())
    with pytest.raises(CaptureError, match=rf"{name}\(\) of this SGD was replaced by .*lambda.* Replace it afterwards"):
        ipu_prepare(model, optimizer)


def test_a_method_that_was_replaced_afterwards_stays_when_the_model_is_given_back():
    """It clamps weights after each step: first the device's, then PyTorch's."""
    found = []
    for captures in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        if captures:
            ipu_prepare(model, optimizer)
        original = optimizer.step

        def step(model=model, original=original):
            original()
            with torch.no_grad():
                model.weight.clamp_(-0.2, 0.2)

        optimizer.step = step
        for number in range(3):
            optimizer.zero_grad()
            model(torch.ones(3, 4)).pow(2).sum().backward()
            optimizer.step()
            capture = captured(model)
            if number == 1 and capture is not None:
                capture.close()
        found.append(model.state_dict())
    torch.testing.assert_close(found[1], found[0])
