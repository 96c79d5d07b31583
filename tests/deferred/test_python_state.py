"""A model's code reads Python values as they are at the call, as in PyTorch, or is refused by name."""

from __future__ import annotations

import copy
import inspect
import itertools
import types
from typing import Any, Callable, List
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from ignite.engine import create_supervised_trainer
from torch import nn
from torch.nn.utils import prune

from ignite_ipu import create_ipu_trainer, ipu_prepare
from ignite_ipu.deferred import CaptureError, capture_model, capture_optimizer, captured

X = torch.randn(16, 6, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()
UPDATES = 5
SETTINGS = {"scale": 1.0}
SCALE = 1.0
# Beside the model, of which an attribute would be noticed by itself.
HANDLES: Any = {}


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * SCALE * SETTINGS["scale"]


class Scale:
    """A configuration, with a method that the model calls."""

    def __init__(self) -> None:
        self.inner = types.SimpleNamespace(value=1.0)
        self.calls_elsewhere = 0

    def now(self) -> float:
        return float(self.inner.value)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.second = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)
        self.act: Callable[[torch.Tensor], torch.Tensor] = torch.tanh
        self.layer = nn.Tanh()
        self.scale, self.array, self.both = Scale(), np.ones(2, dtype="float32"), False
        self.memory, self.gates = np.ones(2, dtype="float32"), [torch.ones(2, 2)[:, 0]]
        self.shared = torch.from_numpy(self.memory)
        self.register_buffer("shift", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> Any:
        features = self.layer(self.act(self.norm(self.first(x)))) - self.shift
        scores = scaled(self.second(features)) * self.scale.now() * torch.tensor(self.array, device=x.device)
        scores = scores * self.gates[0] * self.shared
        return (scores, features) if self.both else scores


def loss_of(net: nn.Module) -> torch.Tensor:
    output = net(X)
    return F.cross_entropy(*((output, Y) if isinstance(output, torch.Tensor) else (output[0] + output[1].mean(), Y)))


def train(
    net: Any, optimizer: torch.optim.Optimizer, change: Callable[[Any, int], Any], evaluates: bool = True
) -> List[float]:
    """Train, and evaluate between updates or not at all; return the losses and a value of the evaluations."""
    seen = []
    for number in range(UPDATES):
        change(net, number)
        loss = loss_of(net)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        seen.append(loss.item())
        if evaluates:
            net.eval()
            with torch.no_grad():
                seen.append(loss_of(net).item())
            net.train()
    return seen


def prepared() -> Any:
    net = Net()
    capture_model(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    capture_optimizer(optimizer)
    return net, optimizer


def set_global(net: Any, number: int) -> None:
    globals()["SCALE"] = 1 + number / 4


def set_in_global(net: Any, number: int) -> None:
    SETTINGS["scale"] = 1 + number / 4


def set_in_object(net: Any, number: int) -> None:
    net.scale.inner.value = 1 + number / 4


def replace_object(net: Any, number: int) -> None:
    net.scale = Scale()
    net.scale.inner.value = 1 + number / 4


def write_array(net: Any, number: int) -> None:
    net.array[0] = number


def write_data(net: Any, number: int) -> None:
    """PyTorch does not count it."""
    net.gates[0].data[1] = 1 + number / 4


def write_shared_memory(net: Any, number: int) -> None:
    """Nor this."""
    net.memory[0] = 1 + number / 4


def replace_function(net: Any, number: int) -> None:
    net.act = torch.relu if number % 2 else torch.tanh


def replace_layer(net: Any, number: int) -> None:
    net.layer = nn.ReLU() if number % 2 else nn.Tanh()


def patch_forward(net: Any, number: int) -> None:
    if number == 2:
        net.second.forward = types.MethodType(lambda layer, x: F.linear(x, layer.weight) * 2, net.second)


def patch_the_models_forward(net: Any, number: int) -> None:
    if number == 2:
        forward = net.forward
        net.forward = lambda x: forward(x) * 2
    elif number == 4:
        del net.forward


def return_more(net: Any, number: int) -> None:
    net.both = bool(number % 2)


def hook(net: Any, number: int) -> None:
    if number == 2:
        HANDLES[0] = net.second.register_forward_hook(lambda module, inputs, output: output * 2)
    if number == 4:
        HANDLES[0].remove()


def hook_on_all_layers(net: Any, number: int) -> None:
    if number == 2:
        double = lambda module, inputs, output: output * 2 if module is net.second else None  # noqa: E731
        HANDLES[0] = nn.modules.module.register_module_forward_hook(double)
    elif number == 4:
        HANDLES[0].remove()


def hook_with_a_variable(net: Any, number: int) -> None:
    if number == 0:
        net.factor = [1.0]
        factor = net.factor
        net.first.register_forward_pre_hook(lambda module, inputs: (inputs[0] * factor[0],))
    net.factor[0] = 1 + number / 4


def hold_statistics(net: Any, number: int) -> None:
    """Hold the statistics in every second update, with a whole number, and add an attribute as backups do."""
    net.norm.backup, net.norm.momentum = 0.1, (number + 1) % 2 and 0.1


def leave_statistics(net: Any, number: int) -> None:
    net.norm.track_running_stats = number % 2 == 0


CHANGES = [
    hold_statistics,
    leave_statistics,
    set_global,
    set_in_global,
    set_in_object,
    replace_object,
    write_array,
    write_data,
    write_shared_memory,
    replace_function,
    replace_layer,
    patch_forward,
    patch_the_models_forward,
    return_more,
    hook,
    hook_on_all_layers,
    hook_with_a_variable,
]


@pytest.mark.parametrize("evaluates", [True, False])
@pytest.mark.parametrize("change", CHANGES)
def test_changes_between_updates_count(
    change: Callable[[Any, int], Any], evaluates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In training and evaluation, wherever the value is kept, and whatever else makes the library look."""
    results = []
    for captures in (False, True):
        monkeypatch.setitem(SETTINGS, "scale", 1.0)
        monkeypatch.setitem(globals(), "SCALE", 1.0)
        if captures:
            net, optimizer = prepared()
        else:
            net = Net()
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        results.append(train(net, optimizer, change, evaluates))
    assert results[1] == pytest.approx(results[0], rel=1e-4)
    assert len(set(results[0])) == (1 + evaluates) * UPDATES


def test_what_the_code_does_not_name_compiles_nothing() -> None:
    """An object that the model holds may count steps, and others may come and go."""
    net, optimizer = prepared()

    def change(net: Any, number: int) -> None:
        net.scale.calls_elsewhere += 1
        net.scale.inner.unread = number

    train(net, optimizer, change)
    assert captured(net).compilations == 1  # type: ignore[union-attr]


def test_configurations_of_transformers() -> None:
    """Their models read them in the library's code, and return more by them."""
    transformers = pytest.importorskip("transformers")
    settings = {"vocab_size": 9, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    results = []
    for captures in (False, True):
        torch.manual_seed(0)
        net = transformers.BertForSequenceClassification(transformers.BertConfig(hidden_size=8, **settings)).train()
        for part in net.modules():
            if isinstance(part, nn.Dropout):
                part.p = 0.0
        if captures:
            capture_model(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        if captures:
            capture_optimizer(optimizer)
        tokens = torch.arange(8).reshape(2, 4)
        for number in range(3):
            net.config.output_hidden_states = number != 1
            output = net(input_ids=tokens, labels=torch.tensor([0, 1]))
            extra = 0.0 if output.hidden_states is None else output.hidden_states[1].square().mean()
            loss = output.loss + extra
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            results.append(loss.item())
    assert results[3:] == pytest.approx(results[:3], rel=1e-5)
    assert results[0] > results[1] + 0.5


def freeze(net: Any) -> None:
    net.first.requires_grad_(False)


def set_between(net: Any) -> None:
    net.scale.inner.value *= 0.5


REASONS = {
    "modules were put in training or evaluation mode": lambda net: net.eval(),
    "parameters were frozen or unfrozen": freeze,
    r"Python values that its code reads have changed \(self\.scale\.inner\.value\)": set_between,
    "modules or hooks were replaced, added or removed": lambda net: replace_layer(net, 1),
}


@pytest.mark.parametrize("backward_first", [False, True])
@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("compiled", [False, True])
def test_updates_are_of_the_model_as_it_was_called(reason: str, backward_first: bool, compiled: bool) -> None:
    """PyTorch has computed the loss before the change, and so does the program; a new one cannot have other code."""
    results = []
    for capture in (False, True):
        torch.manual_seed(0)
        net, optimizer = prepared() if capture else (Net(), None)
        optimizer = optimizer or torch.optim.SGD(net.parameters(), lr=0.1)
        if compiled:
            train(net, optimizer, lambda net, number: None)
        loss = loss_of(net)
        if not backward_first:
            REASONS[reason](net)
        if capture and not backward_first and "frozen" in reason:
            with pytest.raises(CaptureError, match=r"after the model was called at .* and before backward\(\) at"):
                loss.backward()  # type: ignore[no-untyped-call]
            return
        loss.backward()  # type: ignore[no-untyped-call]
        if backward_first:
            REASONS[reason](net)
        if capture and not compiled and "Python" in reason:
            with pytest.raises(CaptureError, match=rf"called at .*test_python_state\.py:\d+, and before.*{reason}"):
                optimizer.step()
            return
        optimizer.step()
        weights = {name: value for name, value in net.state_dict().items() if "batches" not in name}
        results.append([loss.item(), *weights.values()])
    torch.testing.assert_close(results[0], results[1])


@pytest.mark.parametrize("reason", [reason for reason in REASONS if "hooks" not in reason])
def test_changes_between_the_calls_of_one_update_are_refused(reason: str) -> None:
    net, optimizer = prepared()
    train(net, optimizer, lambda net, number: None)
    loss = loss_of(net)
    REASONS[reason](net)

    def update() -> None:
        (loss + loss_of(net)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    refusal = rf"again for the same update .*, but in between {reason}"
    if net.training:  # in evaluation mode the second call is none of the update
        with pytest.raises(CaptureError, match=f"{refusal}|Parameters were frozen or unfrozen after the model"):
            update()


def test_a_change_that_is_taken_back_is_none() -> None:
    """An evaluation between backward() and step() leaves the mode as it was."""
    net, optimizer = prepared()
    loss_of(net).backward()  # type: ignore[no-untyped-call]
    net.eval()
    net.train()
    optimizer.step()


def replace_weight(net: Any) -> None:
    net.second.weight = nn.Parameter(net.second.weight.detach() * 2)


def replace_weighted_layer(net: Any) -> None:
    net.second = nn.Linear(8, 2)


def replace_buffer(net: Any) -> None:
    net.shift = net.shift + 1


def prune_layer(net: Any) -> None:
    prune.l1_unstructured(net.second, "weight", amount=0.5)  # type: ignore[no-untyped-call]


def load_assigned(net: Any) -> None:
    if "assign" not in inspect.signature(net.load_state_dict).parameters:
        pytest.skip("this PyTorch copies what it loads")
    net.load_state_dict({name: value.clone() for name, value in net.state_dict().items()}, assign=True)


CHANGES = (replace_weight, replace_weighted_layer, replace_buffer, prune_layer, load_assigned)
# Of the weights that an optimizer holds the same are there, or others.
SAME_OPTIMIZER = (replace_buffer, prune_layer)


@pytest.mark.parametrize("evaluates", [True, False])
@pytest.mark.parametrize("change", CHANGES)
def test_replaced_weights_are_taken(change: Callable[[Any], Any], evaluates: bool) -> None:
    """As when a model that has been trained gets a head for another task, or is pruned; states go on as in PyTorch."""
    found = []
    for captures in (False, True):
        net, optimizer = Net(), None
        if captures:
            net, optimizer = prepared()
        optimizer = optimizer or torch.optim.SGD(net.parameters(), lr=0.1)
        for group in optimizer.param_groups:
            group["momentum"] = 0.9
        seen: List[Any] = [train(net, optimizer, lambda net, number: None)]
        torch.manual_seed(1)
        change(net)
        if evaluates:
            with torch.no_grad():
                seen.append(net.eval()(X))
            net.train()
        if change not in SAME_OPTIMIZER:
            optimizer = torch.optim.Adam(
                net.parameters(), lr=0.01, eps=1e-4
            )  # gradients of a bias before a norm are noise
            if captures:
                capture_optimizer(optimizer)
        seen.append(train(net, optimizer, lambda net, number: None))
        found.append([seen, copy.deepcopy(net.state_dict()), optimizer.state_dict()["state"]])
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


def test_weights_are_brought_to_where_they_were_trained() -> None:
    """A layer of the same shape keeps its own, whichever code reads the others."""
    net, optimizer = prepared()
    F.cross_entropy(net(X), Y).backward()
    optimizer.step()
    old, net.second = net.second, nn.Linear(8, 2)
    fresh, before = net.second.weight.detach().clone(), old.weight.detach().clone()
    assert torch.equal(net.state_dict()["second.weight"], fresh)
    assert not torch.equal(old.weight, fresh) and torch.equal(old.weight, before)


@pytest.mark.parametrize("update", ["device", "auto", "host"])
def test_gradients_of_before_a_replacement_are_not_none(update: str) -> None:
    """PyTorch has them still. The device has none of them, so they are refused there: None would be a wrong answer."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    ipu_prepare(optimizer, net, config={"update": update})
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(net(X), Y).backward()
        optimizer.step()
    replace_weighted_layer(net)
    net(X)
    net.half().float()  # reads no values
    first = net.first.weight
    if update == "host":
        assert first.grad is not None and first.grad.any()
    else:
        with pytest.raises(CaptureError, match=r"test_python_state\.py:\d+, before weights of the model were replaced"):
            first.grad.sum()
    assert net.second.weight.grad is None
    optimizer.zero_grad()
    assert first.grad is None


def test_a_layer_is_replaced_between_a_loss_and_its_update() -> None:
    """The update is of the layer that the loss was computed with; another call before it is refused."""
    seen: List[Any] = []
    for make in (lambda: (net := Net(), torch.optim.SGD(net.parameters(), lr=0.1)), prepared):
        torch.manual_seed(0)
        net, optimizer = make()
        train(net, optimizer, lambda net, number: None, evaluates=False)
        before = net.second
        F.cross_entropy(net(X), Y).backward()
        replace_weighted_layer(net)
        optimizer.step()
        seen.append([before.state_dict(), net.state_dict()])
    torch.testing.assert_close(*seen)
    net, optimizer = prepared()
    F.cross_entropy(net(X), Y).backward()
    replace_weighted_layer(net)
    with pytest.raises(CaptureError, match=r"second\.weight, second\.bias of the model was replaced, added or removed"):
        net(X)


def remove_bias(net: Any) -> None:
    net.second.bias = None


def put_bias(net: Any) -> None:
    net.second._parameters["bias"] = nn.Parameter(torch.ones(2))


def put_buffer(net: Any) -> None:
    net._buffers["shift"] = net.shift + 1


@pytest.mark.parametrize("evaluates", [True, False])
@pytest.mark.parametrize("change", [remove_bias, put_bias, put_buffer])
def test_replacements_that_pytorch_does_not_report_are_noticed_with_the_next_call(
    change: Callable[[Any], Any], evaluates: bool
) -> None:
    """Calls before and after are those of the eager model, without a call of `train()` or `eval()` between them."""
    net, optimizer = prepared()
    train(net, optimizer, lambda net, number: None)
    net.train(not evaluates)
    with torch.no_grad():
        net(X)
    change(net)
    with torch.no_grad():
        torch.testing.assert_close(net(X), copy.deepcopy(net)(X))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("change", CHANGES)
def test_weights_that_are_replaced_before_training_are_taken(change: Callable[[Any], Any], training: bool) -> None:
    """As when the head of a model is replaced after a look at its predictions: updates are PyTorch's."""
    net, _ = prepared()
    with torch.set_grad_enabled(training):
        net.train(training)(X)
    change(net.train())
    native = copy.deepcopy(net)
    optimizer, own = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (net, native)]
    capture_optimizer(optimizer)
    for _ in range(2):
        for each, update in ((net, optimizer), (native, own)):
            F.cross_entropy(each(X), Y).backward()
            update.step()
            update.zero_grad()
    torch.testing.assert_close(dict(net.named_parameters()), dict(native.named_parameters()))


def test_modules_that_a_loop_makes_are_nothing_to_look_for() -> None:
    """A loss that is made in every iteration registers a buffer of its own."""
    net, optimizer = prepared()
    with mock.patch("ignite_ipu.deferred.compiled.modes.refuse_replaced") as looks:
        seen = []
        for _ in range(4):
            criterion = nn.CrossEntropyLoss()
            criterion(net(X), Y).backward()
            optimizer.step()
            optimizer.zero_grad()
            seen.append(looks.call_count)
    assert seen[1] == seen[-1]


class Cached(nn.Module):
    """A model that keeps the result of its first call in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(6, 2)
        self.scale: Any
        self.register_buffer("scale", None, persistent=False)

    def forward(self, x: torch.Tensor) -> Any:
        if self.scale is None:
            self.scale = torch.full((2,), 0.5)
        return self.layer(x) * self.scale


@pytest.mark.parametrize("train", [True, False])
def test_a_cache_of_the_first_call_is_no_replaced_buffer(train: bool) -> None:
    """The model has set it up itself."""
    found = []
    for captures in (False, True):
        net = Cached().train(train)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        if captures:
            capture_model(net)
            capture_optimizer(optimizer)
        for _ in range(3):
            output = net(X)
            if train:
                F.cross_entropy(output, Y).backward()
                optimizer.step()
                optimizer.zero_grad()
        found.append((output.detach() + 0, net.state_dict()))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


class Grows:
    """A hook that counts its calls, and scales by them."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, module: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return output * self.calls


def count_in_object(net: Any) -> None:
    net.first.register_forward_hook(Grows())


def count_by_iterator(net: Any) -> None:
    counted = itertools.count(1)
    net.first.register_forward_hook(lambda module, inputs, output: output * next(counted))


def count_by_generator(net: Any) -> None:
    counted = (number for number in range(1, 9))
    net.first.register_forward_hook(lambda module, inputs, output: output * next(counted))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (count_in_object, r"self\.calls"),
        (count_by_iterator, "counted"),
        (count_by_generator, "counted"),
    ],
)
def test_hooks_that_change_something_in_every_call_are_refused(change: Callable[[Any], Any], name: str) -> None:
    """A compiled program runs them once; in PyTorch they run in every call."""
    net, _ = prepared()
    change(net)
    with pytest.raises(CaptureError, match=rf"changes Python values in every call.*\({name}"):
        net(X)


class Shows(nn.Module):
    """Leaves its attention in an attribute for others to look at, which it does not read itself."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attend, self.last, self.attention = nn.Linear(6, 6), nn.Linear(6, 2), None

    def forward(self, x: torch.Tensor) -> Any:
        attention = self.attend(x).softmax(1)
        self.attention = attention
        return self.last(attention * x)


def test_tensors_that_are_left_for_others_to_look_at_are_no_state(caplog: pytest.LogCaptureFixture) -> None:
    """The loop gets an error: it has no new ones."""
    found = []
    for captures in (False, True):
        net = Shows()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        if captures:
            capture_model(net)
            capture_optimizer(optimizer)
        found.append((train(net, optimizer, lambda net, number: None), net.state_dict()))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)
    assert "attention: tensors that were kept while the model was traced are the device's" in caplog.text


def test_a_layer_whose_hook_reads_its_mode() -> None:
    """The hook is PyTorch's: a spectral norm stays as it is in evaluation mode, though the model trains."""
    losses: List[float] = []
    for captures in (False, True):
        torch.manual_seed(0)
        net = nn.Sequential(nn.utils.spectral_norm(nn.Linear(4, 5)), nn.Tanh(), nn.Linear(5, 2))
        optimizer: Any = torch.optim.SGD(net.parameters(), lr=0.5)
        optimizer = ipu_prepare(optimizer, net) if captures else optimizer
        for number in range(12):
            net[0].train(number % 6 < 3)
            loss = F.cross_entropy(net(X[:, :4] * (number + 1)), Y)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    assert losses[12:] == pytest.approx(losses[:12], rel=1e-5)


class Codebook(nn.Module):
    """Begins with the first vectors, as a flag records, and follows all of them."""

    def __init__(self, flag: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.register_buffer("vectors", torch.zeros(3, 2))
        if isinstance(flag, torch.Tensor):
            self.register_buffer("ready", flag)
        else:
            self.ready = flag

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        if not self.ready:
            self.vectors.copy_(y.detach()[:3])
            if isinstance(self.ready, bool):
                self.ready = True
            else:
                self.ready.fill_(1)
        nearest = torch.cdist(y, self.vectors).argmin(1)
        with torch.no_grad():
            self.vectors.mul_(0.9).add_(0.1 * y.mean(0))
        return y * 0.5 + self.vectors[nearest]


@pytest.mark.parametrize("flag", [False, torch.tensor(False), torch.zeros(1), torch.tensor(0)])
@pytest.mark.parametrize("front_end", ["loop", "trainer"])
def test_values_from_the_first_batch(flag: Any, front_end: str) -> None:
    """The first call sets a buffer that each call writes afterwards."""
    torch.manual_seed(0)
    batches = [(torch.randn(5, 4), torch.randn(5, 2)) for _ in range(3)]
    models = []
    for captures in (False, True):
        torch.manual_seed(1)
        model = Codebook(flag.clone() if isinstance(flag, torch.Tensor) else flag)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if front_end == "loop":
            if captures:
                ipu_prepare(optimizer, model)
            for x, y in batches:
                optimizer.zero_grad()
                nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
        else:
            make: Any = create_ipu_trainer if captures else create_supervised_trainer
            make(model, optimizer, nn.MSELoss()).run(batches)
        models.append(dict(model.state_dict()))
    torch.testing.assert_close(models[1], models[0], rtol=1e-4, atol=1e-6)
