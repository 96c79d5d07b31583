"""Gradients of a prepared model are the device's: writing into them is never a silent no-op.

With `update="device"` it is an error; else PyTorch makes the updates from there on, on the host.
"""

from __future__ import annotations

import copy
import inspect
import io
from pathlib import Path
from typing import Any, Callable, Tuple
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from ignite.engine import Engine
from torch import nn

from ignite_ipu import IPUConfig, ipu_step
from ignite_ipu.deferred import CaptureError
from ignite_ipu.deferred.accelerator import IPUAccelerator
from tests.accelerate_state import forget

X = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()
Use = Callable[[nn.Module], Any]


def on_device() -> Any:
    """Return an accelerator that refuses updates that the device cannot express."""
    return IPUAccelerator(config=IPUConfig(update="device"))


def trained(updates: int, make: Callable[[], Any] = IPUAccelerator) -> Tuple[Any, Any, Any]:
    """Return accelerator, model and optimizer after some updates and one more backward."""
    torch.manual_seed(0)
    accelerator = make()
    model: Any = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.1))
    for _ in range(updates):
        backward(accelerator, model)
        optimizer.step()
        optimizer.zero_grad()
    backward(accelerator, model)
    return accelerator, model, optimizer


def backward(accelerator: IPUAccelerator, model: nn.Module) -> None:
    accelerator.backward(F.cross_entropy(model(X), Y))


def compared(run: Callable[[Callable[[], Any]], nn.Module], caplog: pytest.LogCaptureFixture) -> None:
    """Train natively and on the device, which has to end alike, with one warning that updates are on the host."""
    forget()
    expected = copy.deepcopy(run(lambda: Accelerator(cpu=True)).state_dict())
    forget()
    found = run(IPUAccelerator).state_dict()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    (change,) = [text for text in caplog.messages if text.startswith("Weights are updated on the host from ")]
    assert __file__ in change and "MB each way" in change


def scale_by_hand(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad *= 0.5


USES = {
    "clip_grad_norm_": lambda model: nn.utils.clip_grad_norm_(model.parameters(), 1.0),
    "clip_grad_norm_ foreach": lambda model: nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True),
    "clip_grad_value_": lambda model: nn.utils.clip_grad_value_(model.parameters(), 1.0),
    "data": lambda model: next(model.parameters()).grad.data.clamp_(-1.0, 1.0),
    "part": lambda model: next(model.parameters()).grad[0].zero_(),
    "foreach": lambda model: torch._foreach_mul_([p.grad for p in model.parameters()], 0.5),
    "out": lambda model: torch.mul(torch.ones(16, 6), 0.5, out=model[0].weight.grad),
    "in place": scale_by_hand,
}


@pytest.mark.parametrize("updates", [0, 2])
@pytest.mark.parametrize("name", USES)
def test_writing_into_gradients_is_refused(name: str, updates: int) -> None:
    """In the first update and in later ones, with the line and the remedy; nothing is trained by mistake."""
    _, model, _ = trained(updates, on_device)
    use: Use = USES[name]
    with pytest.raises(CaptureError, match=r"use accelerator\.clip_grad_norm_.*or IPUAccelerator\(max") as error:
        use(model)
    lines, first = inspect.getsourcelines(use)
    named = int(str(error.value).split(f"{__file__}:")[1].split(",")[0])
    assert first <= named < first + len(lines)


@pytest.mark.parametrize("updates", [0, 2])
@pytest.mark.parametrize("name", USES)
def test_writing_into_gradients_has_its_effect(name: str, updates: int, caplog: pytest.LogCaptureFixture) -> None:
    """The update is made by PyTorch then, and so are those that follow."""

    def run(make: Callable[[], Any]) -> nn.Module:
        accelerator, model, optimizer = trained(updates, make)
        for number in range(2):
            if number:
                backward(accelerator, model)
            USES[name](model)
            optimizer.step()
            optimizer.zero_grad()
        return model  # type: ignore[no-any-return]

    compared(run, caplog)


@pytest.mark.parametrize("read", [False, True])
def test_clipping_after_a_read_loss_or_an_evaluation_is_refused(read: bool) -> None:
    """Compiling a program in the middle of an update leaves no moment in which clipping does nothing."""
    accelerator, model, optimizer = trained(1, on_device)
    optimizer.step()
    optimizer.zero_grad()
    loss = F.cross_entropy(model(X), Y)
    accelerator.backward(loss)
    if read:
        loss.item()
    else:
        model.eval()(X)
        model.train()
    with pytest.raises(CaptureError, match=r"clip_grad_norm_\(model\.parameters\(\)"):
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def test_clearing_gradients_by_hand_does_not_make_clipping_silent() -> None:
    """`parameter.grad = None` holds until the next backward, as in PyTorch."""
    accelerator, model, optimizer = trained(1, on_device)
    optimizer.step()
    for parameter in model.parameters():
        parameter.grad = None
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    backward(accelerator, model)
    with pytest.raises(CaptureError, match="the device updates weights by its own gradients"):
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)


@pytest.mark.parametrize(
    "clear", [lambda model, optimizer: optimizer.zero_grad(), lambda model, optimizer: model.zero_grad()]
)
def test_clearing_gradients_keeps_clipping_refused(clear: Callable[[nn.Module, Any], None]) -> None:
    """Both ways of clearing leave gradients of the next loss that refuse it, as those of the last did."""
    accelerator, model, optimizer = trained(1, on_device)
    for _ in range(2):
        with pytest.raises(CaptureError, match="A gradient is written into"):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        clear(model, optimizer)
        backward(accelerator, model)


def drop_all(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = None


def drop_some(model: nn.Module) -> None:
    for parameter in model[2].parameters():  # type: ignore[index]
        parameter.grad = None


def set_one(model: nn.Module) -> None:
    model[0].weight.grad = torch.zeros(16, 6)  # type: ignore[index]


@pytest.mark.parametrize("clear_after", [0, 2])
@pytest.mark.parametrize("step", ["backward", "none"])
def test_gradients_that_nothing_cleared_are_not_used_again(clear_after: int, step: str) -> None:
    """PyTorch adds to them, and a second step() uses them again; on the device they are gone."""
    accelerator, model, optimizer = trained(clear_after, on_device)
    optimizer.step()
    if step == "backward":
        backward(accelerator, model)
    with pytest.raises(CaptureError, match=r"gradients of the one made at .*again.*Call optimizer\.zero_grad\(\)"):
        optimizer.step()


@pytest.mark.parametrize("updates", [0, 2])
def test_dropping_all_gradients_drops_the_update(updates: int) -> None:
    """`parameter.grad = None` for every parameter equals zero_grad(), before an update as after it."""
    _, model, optimizer = trained(updates)
    native: Any = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
    native.load_state_dict(model.state_dict())
    own = torch.optim.AdamW(native.parameters(), lr=0.1)
    own.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    F.cross_entropy(native(X), Y).backward()  # type: ignore[no-untyped-call]
    for net, optim in ((model, optimizer), (native, own)):
        drop_all(net)
        optim.step()
        for _ in range(2):
            loss = F.cross_entropy(net(X), Y)
            loss.backward()  # type: ignore[no-untyped-call]
            optim.step()
            drop_all(net)
    torch.testing.assert_close(model.state_dict(), native.state_dict(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("then_evaluate", [False, True])
@pytest.mark.parametrize("updates", [0, 2])
def test_dropping_some_gradients_is_refused(updates: int, then_evaluate: bool) -> None:
    """A device updates every trained weight; an evaluation in between does not make it forget."""
    _, model, optimizer = trained(updates, on_device)
    drop_some(model)
    if then_evaluate:
        model.eval()(X)
        model.train()
    with pytest.raises(CaptureError, match=r"The gradient of 2\.weight and 1 more was set to None before step\(\) at"):
        optimizer.step()


def test_dropping_gradients_that_are_cleared_means_nothing() -> None:
    """After zero_grad() they are None already."""
    accelerator, model, optimizer = trained(1)
    optimizer.step()
    optimizer.zero_grad()
    drop_some(model)
    backward(accelerator, model)
    optimizer.step()


def test_setting_gradients_is_refused() -> None:
    """The device would not use them."""
    _, model, optimizer = trained(1, on_device)
    set_one(model)
    with pytest.raises(CaptureError, match=r"0\.weight of shape \(16, 6\) has a gradient that the host has computed"):
        optimizer.step()


def step_again(accelerator: Any, model: nn.Module, optimizer: Any) -> None:
    optimizer.step()


def add_to_the_last(accelerator: Any, model: nn.Module, optimizer: Any) -> None:
    optimizer.step()
    backward(accelerator, model)


def drop_some_and_evaluate(accelerator: Any, model: nn.Module, optimizer: Any) -> None:
    drop_some(model)
    model.eval()(X)
    model.train()


USED_OTHERWISE = {
    "a second step": step_again,
    "backward without clearing": add_to_the_last,
    "some dropped": lambda accelerator, model, optimizer: drop_some(model),
    "some dropped, and an evaluation": drop_some_and_evaluate,
    "one set": lambda accelerator, model, optimizer: set_one(model),
    "zeros": lambda accelerator, model, optimizer: optimizer.zero_grad(set_to_none=False),
    "clipped in parts": lambda accelerator, model, optimizer: accelerator.clip_grad_norm_(model[2].parameters(), 0.01),
    "clipped by value": lambda accelerator, model, optimizer: accelerator.clip_grad_value_(model.parameters(), 0.001),
    "clipped by another norm": lambda accelerator, model, optimizer: accelerator.clip_grad_norm_(
        model.parameters(), 0.01, norm_type=1
    ),
}


@pytest.mark.parametrize("updates", [0, 2])
@pytest.mark.parametrize("name", USED_OTHERWISE)
def test_gradients_are_used_as_pytorch_uses_them(name: str, updates: int, caplog: pytest.LogCaptureFixture) -> None:
    """Where the device's update cannot express it, PyTorch makes the updates from there on."""

    def run(make: Callable[[], Any]) -> nn.Module:
        accelerator, model, optimizer = trained(updates, make)
        USED_OTHERWISE[name](accelerator, model, optimizer)
        optimizer.step()
        optimizer.zero_grad()
        backward(accelerator, model)
        optimizer.step()
        return model  # type: ignore[no-any-return]

    compared(run, caplog)


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 2)
        self.b = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor, head: str) -> Any:
        return getattr(self, head)(x)


def alternate(model: nn.Module, optimizer: Any, set_to_none: Any) -> None:
    """Train two heads in turns."""
    for rows, head in ((8, "a"), (6, "a"), (8, "b"), (8, "a")):
        F.cross_entropy(model(X[:rows], head), Y[:rows]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=set_to_none)


_LEAVES_NONE = "set_to_none = True" in inspect.getsource(AcceleratedOptimizer.zero_grad)


@pytest.mark.parametrize(
    "set_to_none",
    [True, pytest.param(None, marks=pytest.mark.skipif(not _LEAVES_NONE, reason="zeros before accelerate 0.28"))],
)
def test_weights_without_gradients_are_left_alone(set_to_none: Any) -> None:
    """Neither weight decay nor momentum moves the head that was not called, as in PyTorch."""
    torch.manual_seed(0)
    native, model = Heads(), Heads()
    model.load_state_dict(native.state_dict())
    alternate(native, torch.optim.AdamW(native.parameters(), lr=0.1), True)
    model, optimizer = IPUAccelerator().prepare(model, torch.optim.AdamW(model.parameters(), lr=0.1))
    alternate(model, optimizer, set_to_none)
    torch.testing.assert_close(model.state_dict(), native.state_dict(), rtol=1e-5, atol=1e-6)


def test_gradients_of_zero_are_refused_where_they_matter() -> None:
    """PyTorch moves the other head by its momentum then; a shorter batch makes no difference."""
    model = Heads()
    model, optimizer = on_device().prepare(model, torch.optim.AdamW(model.parameters(), lr=0.1))
    with pytest.raises(CaptureError, match=r"made zero, not None, at .*Call zero_grad\(set_to_none=True\)"):
        alternate(model, optimizer, False)
    optimizer.zero_grad(set_to_none=False)
    with pytest.raises(CaptureError, match="follows no backward"):
        optimizer.step()


def test_gradients_of_zero_are_used(caplog: pytest.LogCaptureFixture) -> None:
    """The other head moves by its momentum and decay, and so does all in a step without backward."""

    def run(make: Callable[[], Any]) -> nn.Module:
        torch.manual_seed(0)
        model = Heads()
        model, optimizer = make().prepare(model, torch.optim.AdamW(model.parameters(), lr=0.1))
        alternate(model, optimizer, False)
        optimizer.step()
        return model

    compared(run, caplog)


def test_gradients_can_be_described() -> None:
    """Shape and type are those of the parameter; a debugger can show them."""
    _, model, _ = trained(1)
    gradient: Any = model[0].weight.grad
    assert (gradient.shape, gradient.dtype, gradient.dim(), gradient.device.type) == ((16, 6), torch.float32, 2, "cpu")
    assert repr(gradient) == "DeviceGradient(on the device alone)"


def test_copies_and_files_have_no_gradients(tmp_path: Path) -> None:
    """Copies of the model, averaged weights, pickles and states are made as ever, with the newest weights."""
    accelerator, model, optimizer = trained(2)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    averaged.update_parameters(model)
    file = io.BytesIO()
    torch.save(copy.deepcopy(list(model.parameters())), file)
    file.seek(0)
    loaded = torch.load(file)
    for others in (copy.deepcopy(model).parameters(), averaged.module.parameters(), loaded):
        for mine, theirs in zip(model.parameters(), others):
            assert theirs.grad is None and torch.equal(mine, theirs)
    accelerator.save_state(str(tmp_path))
    accelerator.load_state(str(tmp_path))
    optimizer.zero_grad()
    backward(accelerator, model)
    optimizer.step()


def test_moving_a_model_to_where_it_is() -> None:
    """`model.to(device)`, `float()` and `cpu()` leave a prepared model as it is."""
    accelerator, model, optimizer = trained(1)
    assert model.to(accelerator.device).float().cpu() is model
    assert model[0].to("cpu") is model[0]
    optimizer.step()


def test_a_freed_model_trains_on_the_host() -> None:
    """The substitutes of gradients are gone, and PyTorch's own take their place."""
    accelerator, model, _ = trained(1)
    accelerator.free_memory()
    assert all(parameter.grad is None for parameter in model.parameters())
    F.cross_entropy(model(X), Y).backward()  # type: ignore[no-untyped-call]
    assert nn.utils.clip_grad_norm_(model.parameters(), 1.0) > 0


def test_frozen_parameters_have_none() -> None:
    """As in PyTorch."""
    accelerator = IPUAccelerator()
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    model, _ = accelerator.prepare(model, optimizer)
    backward(accelerator, model)
    assert [parameter.grad is None for parameter in model.parameters()] == [True, True, False, False]


def test_compilers_find_no_gradients() -> None:
    """Whatever PopTorch does with parameters that it traces, it meets none of our tensors."""
    # A forward that changes a list of ours would be refused.
    note = mock.Mock()

    class Watching(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.device.type == "ipu":
                with torch._C.DisableTorchFunction():
                    note([gradient_of(parameter) for parameter in parameters])
            return super().forward(x)

    gradient_of = torch.Tensor.grad.__get__
    accelerator = IPUAccelerator()
    layer = Watching(6, 2)
    parameters = list(layer.parameters())
    model, optimizer = accelerator.prepare(layer, torch.optim.SGD(layer.parameters(), lr=0.1))
    for rows in (4, 8):
        accelerator.backward(F.cross_entropy(model(X[:rows]), Y[:rows]))
        model.eval()(X[:rows, None])
        model.train()
        optimizer.step()
        optimizer.zero_grad()
    assert [[gradient is None for gradient in call.args[0]] for call in note.call_args_list] == [[True, True]] * 4


# -- gradients from before the capture --------------------------------------------------------------------------------


def net() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))


def loop(accelerator: Any, model: nn.Module, before: Callable[[nn.Module, Any], None], **sgd: Any) -> nn.Module:
    """Warm up on the host, prepare, call `before` in front of the first backward, and make three updates."""
    F.cross_entropy(model(X), Y).backward()  # type: ignore[no-untyped-call]
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, **sgd))
    before(model, optimizer)
    for _ in range(3):
        accelerator.backward(F.cross_entropy(model(X), Y))
        optimizer.step()
        optimizer.zero_grad()
    return model


@pytest.mark.parametrize(
    "before",
    [
        lambda model, _: model.zero_grad(),
        lambda _, optimizer: optimizer.zero_grad(set_to_none=True),
        lambda model, _: drop_all(model),
    ],
)
def test_gradients_from_before_are_cleared_as_natively(before: Callable[[nn.Module, Any], None]) -> None:
    """A loop that clears first trains as in eager PyTorch."""
    expected = loop(Accelerator(cpu=True), net(), before)
    forget()
    found = loop(IPUAccelerator(), net(), before)
    torch.testing.assert_close(found.state_dict(), expected.state_dict(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "before", [lambda *_: None, lambda _, optimizer: optimizer.zero_grad(set_to_none=False), lambda m, _: drop_some(m)]
)
def test_gradients_from_before_are_not_lost_without_notice(before: Callable[[nn.Module, Any], None]) -> None:
    """PyTorch adds to them, and to zeros too, which weight decay moves; the error names weights, line and remedy."""
    model = net()
    gradient = model[0].weight.grad
    with pytest.raises(
        CaptureError, match=r"would add to gradients that the host .*0\.weight.*zero_grad\(set_to_none=True\)"
    ) as error:
        loop(on_device(), model, before)
    assert __file__ in str(error.value)
    gradient = model[0].weight.grad
    assert gradient is not None and type(gradient) is torch.Tensor


@pytest.mark.parametrize(
    "before", [lambda *_: None, lambda _, optimizer: optimizer.zero_grad(set_to_none=False), lambda m, _: drop_some(m)]
)
def test_gradients_from_before_are_added_to(
    before: Callable[[nn.Module, Any], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Those that the host has computed count in the first update."""
    compared(lambda make: loop(make(), net(), before), caplog)


def test_gradients_that_no_optimizer_holds_do_not_matter() -> None:
    """Those of a frozen part that is in no optimizer stay, as in eager PyTorch."""
    model = net()
    F.cross_entropy(model(X), Y).backward()
    model[2].zero_grad()
    model[0].requires_grad_(False)
    accelerator = IPUAccelerator()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model[2].parameters(), lr=0.1))
    kept = model[0].weight.grad
    backward(accelerator, model)
    optimizer.step()
    assert model[0].weight.grad is kept


def test_a_host_loop_between_two_captures() -> None:
    """Its gradients count when the model is prepared again."""
    accelerator, model, optimizer = trained(1, on_device)
    optimizer.step()
    accelerator.free_memory()
    F.cross_entropy(model(X), Y).backward()  # type: ignore[no-untyped-call]
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(CaptureError, match="would add to gradients that the host has computed"):
        backward(accelerator, model)
    optimizer.zero_grad(set_to_none=True)
    backward(accelerator, model)
    optimizer.step()


@pytest.mark.parametrize("clears", [True, False])
def test_a_captured_step_after_a_warm_up(clears: bool) -> None:
    """`ipu_step` clears previous gradients by the script's own zero_grad(), and refuses uncleared ones."""

    def run(wrap: Callable[[Any], Any]) -> nn.Module:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        F.cross_entropy(model(X), Y).backward()

        def step(engine: Engine, batch: Any) -> None:
            if clears:
                optimizer.zero_grad()
            F.cross_entropy(model(X), Y).backward()
            optimizer.step()
            optimizer.zero_grad()

        Engine(wrap(step)).run([0, 1])
        return model

    if clears:
        torch.testing.assert_close(run(ipu_step).state_dict(), run(lambda step: step).state_dict())
        return
    with pytest.raises(CaptureError, match="would add to gradients"):
        run(ipu_step)


def test_freeing_memory_within_an_accumulation_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """PyTorch keeps the gradients of the micro-batches so far; here they were never computed."""
    accelerator, _, _ = trained(1)
    accelerator.free_memory()
    assert "before optimizer.step(): the gradients of 1 losses that went backward are dropped" in caplog.text


# -- parameters that are frozen while they have a gradient ------------------------------------------------------------


def drop_those_of_trained(model: nn.Module, optimizer: Any) -> None:
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = None


def freeze_in_a_loop(accelerator: Any, clear: Callable[[nn.Module, Any], None], freeze: bool = True) -> nn.Module:
    """Train four updates, and freeze the first layer after two, or train it from then on only."""
    model = net()
    model[0].requires_grad_(freeze)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.5)
    model, optimizer = accelerator.prepare(model, optimizer)
    for number in range(4):
        if number == 2:
            model[0].requires_grad_(not freeze)
        if number:
            clear(model, optimizer)
        accelerator.backward(F.cross_entropy(model(X), Y))
        optimizer.step()
    return model


def make_zero(model: nn.Module, optimizer: Any) -> None:
    optimizer.zero_grad(set_to_none=False)


def clear_twice(model: nn.Module, optimizer: Any) -> None:
    optimizer.zero_grad(set_to_none=True)
    drop_those_of_trained(model, optimizer)


def test_freezing_with_gradients_of_zero_is_refused() -> None:
    """PyTorch goes on decaying the frozen layer, whose gradients are not None."""
    with pytest.raises(CaptureError, match=r"frozen after the update before\..* zero_grad\(set_to_none=True\)"):
        freeze_in_a_loop(on_device(), make_zero)


def test_a_gradient_that_is_left_on_a_frozen_parameter_is_refused() -> None:
    """PyTorch updates with it again and again."""
    with pytest.raises(
        CaptureError,
        match=r"The gradients of 2\.weight and 1 more were cleared at another time than those of 0\.weight",
    ):
        freeze_in_a_loop(on_device(), drop_those_of_trained)


@pytest.mark.parametrize(("clear", "freeze"), [(clear_twice, True), (clear_twice, False), (make_zero, False)])
def test_freezing_and_unfreezing_with_cleared_gradients(clear: Callable[[nn.Module, Any], None], freeze: bool) -> None:
    """A frozen layer without gradients stays, and one that is trained from now on had none before, as in PyTorch."""
    expected = freeze_in_a_loop(Accelerator(cpu=True), clear, freeze)
    forget()
    found = freeze_in_a_loop(IPUAccelerator(), clear, freeze)
    torch.testing.assert_close(found.state_dict(), expected.state_dict(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("clear", [make_zero, drop_those_of_trained])
def test_a_frozen_parameter_with_a_gradient_moves(
    clear: Callable[[nn.Module, Any], None], caplog: pytest.LogCaptureFixture
) -> None:
    """By its gradient, decay and momentum: PyTorch's step does not look at frozen parameters."""
    compared(lambda make: freeze_in_a_loop(make(), clear), caplog)
