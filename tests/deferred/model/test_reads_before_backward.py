"""Values that are read before `backward()`, as by `losses.append(loss.item())` in the middle of a step."""

from __future__ import annotations

import copy
from typing import Any, Callable, Iterator, List, Tuple

import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn

from ignite_ipu import IPUAccelerator, ipu_prepare
from ignite_ipu.deferred import CaptureError, EarlyReadError
from ignite_ipu.deferred.tensor import reads
from ignite_ipu.torch_names.tensors import usual_dispatch
from tests.accelerate_state import forget

FUSED = {"update": "device"}
X = torch.randn(5, 8, 6, generator=torch.Generator().manual_seed(1))
Y = (X[..., 0] > 0).long()


@pytest.fixture(autouse=True)
def _fresh_state() -> Iterator[None]:
    forget()
    yield
    forget()


class ByGradientMode(nn.Module):
    """A layer whose code decides by the mode of gradients, and keeps an average of its results."""

    average: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * (2 if torch.is_grad_enabled() else 3) * (2 if x.requires_grad else 3)
        self.average.lerp_(x.detach().mean(0), 0.1)
        return x


def train(accelerator: Any, body: Callable[..., Any], *layers: nn.Module) -> List[Any]:
    """Train for five steps; returns the read values, and the weights and buffers at the end."""
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(6, 16), *layers, nn.Tanh(), nn.Linear(16, 2))
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9))
    read: List[Any] = []
    for x, y in zip(X, Y):
        body(accelerator, model, optimizer, x, y, read)
    state = {name: value for name, value in model.state_dict().items() if "tracked" not in name}
    return [*read, *state.values()]


def loss_first(accelerator: Any, model: Any, optimizer: Any, x: Any, y: Any, read: List[Any]) -> None:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    read.append(loss.item())
    accelerator.backward(loss)
    optimizer.step()


def cleared_in_between(accelerator: Any, model: Any, optimizer: Any, x: Any, y: Any, read: List[Any]) -> None:
    loss = F.cross_entropy(model(x), y)
    read.append(float(loss.detach()))
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()


def metric_and_parts(accelerator: Any, model: Any, optimizer: Any, x: Any, y: Any, read: List[Any]) -> None:
    output = model(x)
    first, second = F.cross_entropy(output, y), output.square().mean()
    loss = first + 0.1 * second
    read += [(output.argmax(1) == y).float().mean().item(), first.item(), second.item(), loss.item()]
    optimizer.zero_grad()
    accelerator.backward(loss)
    read.append(loss.item())
    optimizer.step()


def put_into_a_tensor(accelerator: Any, model: Any, optimizer: Any, x: Any, y: Any, read: List[Any]) -> None:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    read += torch.tensor([loss.detach(), 2.0]).tolist()  # whose elements PyTorch reads with gradients off
    accelerator.backward(loss)
    optimizer.step()


def checked_for_nan(accelerator: Any, model: Any, optimizer: Any, x: Any, y: Any, read: List[Any]) -> None:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    if not torch.isfinite(loss):
        raise ArithmeticError("diverged")
    accelerator.backward(loss)
    read.append(loss.detach())
    optimizer.step()


BODIES = [loss_first, cleared_in_between, metric_and_parts, checked_for_nan]
if usual_dispatch() is not None:
    BODIES.append(put_into_a_tensor)


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize(
    "layer",
    [nn.Identity, lambda: nn.BatchNorm1d(16), ByGradientMode],
    ids=["plain", "statistics of batches", "mode of gradients"],
)
def test_values_and_weights_are_the_native_ones(body: Callable[..., Any], layer: Callable[[], nn.Module]) -> None:
    """The host computes the first value; the device then makes the update when it is read, and gives it."""
    expected = train(Accelerator(cpu=True), body, layer())
    forget()
    found = train(IPUAccelerator(config=FUSED), body, layer())
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_new_tensor_of_a_loss_is_refused_where_pytorch_lets_no_program_run(monkeypatch: Any) -> None:
    """PyTorch 2.0 cannot be asked for gradients while it reads the elements."""
    monkeypatch.setattr(reads, "usual_dispatch", lambda: None)
    with pytest.raises(EarlyReadError, match=r"torch\.tensor.*Write loss\.item\(\)"):
        train(IPUAccelerator(config=FUSED), put_into_a_tensor)


def test_random_layers_drop_in_the_value_what_they_drop_in_the_update() -> None:
    """From the second step on the value is the loss that is trained with, not another draw's."""
    accelerator = IPUAccelerator(config=FUSED)
    seen = []

    def body(accelerator: Any, model: Any, optimizer: Any, x: Any, y: Any, read: List[Any]) -> None:
        loss = F.cross_entropy(model(x), y)
        before = loss.item()
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        seen.append((before, loss.item()))

    train(accelerator, body, nn.Dropout(0.5))
    assert all(before == after for before, after in seen[1:])


def test_what_is_drawn_in_the_loop_decides_nothing_that_the_device_draws_again() -> None:
    """An action that is sampled and read before there is a loss would be another one in the step."""

    def body(accelerator: Any, model: Any, optimizer: Any, x: Any, y: Any, read: List[Any]) -> None:
        actions = torch.bernoulli(torch.sigmoid(model(x)))
        read.append(actions.tolist())

    with pytest.raises(EarlyReadError, match="before the step has run"):
        train(IPUAccelerator(config=FUSED), body)


def test_it_costs_no_copy_of_weights() -> None:
    """From the second step on there is one device call a step, as without the read."""
    accelerator = IPUAccelerator(config=FUSED)
    stale: List[bool] = []

    def body(accelerator: Any, model: Any, optimizer: Any, x: Any, y: Any, read: List[Any]) -> None:
        loss_first(accelerator, model, optimizer, x, y, read)
        stale.append(accelerator._loops()[0].session.weights.host.is_stale)

    train(accelerator, body)
    assert stale == [True] * 5


@pytest.mark.parametrize("then", ["read", "backward", "step", "evaluate", "save"])
def test_an_update_that_the_loop_then_skips_is_never_kept_in_silence(then: str) -> None:
    """As `if loss.item() > limit: continue`; the next call names the line that made the update run."""
    accelerator = IPUAccelerator(config=FUSED)
    model: Any = nn.Linear(6, 2)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))
    read: List[Any] = []
    for number in range(2):
        loss_first(accelerator, model, optimizer, X[number], Y[number], read)
    optimizer.zero_grad()
    F.cross_entropy(model(X[2]), Y[2]).item()  # and nothing else
    going_on = {
        "read": lambda: F.cross_entropy(model(X[3]), Y[3]).item(),
        "backward": lambda: accelerator.backward(F.cross_entropy(model(X[3]), Y[3])),
        "step": optimizer.step,
        "evaluate": lambda: model.eval()(X[3]),
        "save": model.state_dict,
    }
    with pytest.raises(CaptureError, match=r"made the update run before "):
        going_on[then]()


def skipped(accelerator: Any, model: Any, optimizer: Any, x: Any, y: Any, read: List[Any]) -> None:
    """Leave out the update of the third batch."""
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    read.append(loss.item())
    if len(read) != 3:
        accelerator.backward(loss)
        optimizer.step()


def test_an_update_that_the_loop_then_skips_is_taken_back() -> None:
    """With updates that may go on on the host."""
    expected = train(Accelerator(cpu=True), skipped)
    forget()
    torch.testing.assert_close(train(IPUAccelerator(), skipped), expected, rtol=1e-4, atol=1e-5)


def never_cleared(accelerator: Any, model: Any, optimizer: Any, x: Any, y: Any, read: List[Any]) -> None:
    loss = F.cross_entropy(model(x), y)
    read.append(loss.item())
    accelerator.backward(loss)
    optimizer.step()


def test_gradients_that_are_not_cleared_are_refused() -> None:
    """As without the read: the device has none of the update before to add to."""
    with pytest.raises(CaptureError, match=r"nothing has cleared them since"):
        train(IPUAccelerator(config=FUSED), never_cleared)


def before_backward(accelerator: Any, model: Any, optimizer: Any, x: Any, y: Any, read: List[Any]) -> None:
    loss = F.cross_entropy(model(x), y) / 2
    read.append(loss.item())
    accelerator.backward(loss)
    if len(read) in (2, 4, 5):
        optimizer.step()
        optimizer.zero_grad()


def after_backward(accelerator: Any, model: Any, optimizer: Any, x: Any, y: Any, read: List[Any]) -> None:
    loss = F.cross_entropy(model(x), y) / 2
    accelerator.backward(loss)
    read.append(loss.item())
    if len(read) in (2, 4, 5):
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def of_unlike_sizes(accelerator: Any, model: Any, optimizer: Any, x: Any, y: Any, read: List[Any]) -> None:
    rows = slice(None, 8 - 3 * (len(read) % 2))
    after_backward(accelerator, model, optimizer, x[rows], y[rows], read)


def in_parts(accelerator: Any, model: Any, optimizer: Any, x: Any, y: Any, read: List[Any]) -> None:
    """Two forward passes an update, with their sum read before and after."""
    loss = torch.zeros(())
    for half in (slice(None, 4), slice(4, None)):
        part = F.cross_entropy(model(x[half]), y[half]) / 2
        accelerator.backward(part)
        loss += part.detach()
        read.append(loss.item())
    optimizer.step()
    optimizer.zero_grad()


def after_a_rest(accelerator: Any, model: Any, optimizer: Any, x: Any, y: Any, read: List[Any]) -> None:
    """Updates of two, one and two micro-batches, as at the end of an epoch of three."""
    loss = F.cross_entropy(model(x), y) / 2
    read.append(loss.item())
    accelerator.backward(loss)
    read.append(loss.item())
    if len(read) in (4, 6, 10):
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("body", [before_backward, after_backward, of_unlike_sizes, in_parts, after_a_rest])
@pytest.mark.parametrize("layer", [nn.Identity, lambda: nn.BatchNorm1d(16)], ids=["plain", "statistics of batches"])
def test_where_gradients_accumulate_the_host_computes_values(
    body: Callable[..., Any], layer: Callable[[], nn.Module], caplog: pytest.LogCaptureFixture
) -> None:
    """From the newest weights, which it copies once an update; one line warns of the cost."""
    expected = train(Accelerator(cpu=True), body, layer())
    forget()
    found = train(IPUAccelerator(config=FUSED), body, layer())
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert caplog.text.count("so the host computes it, here and in the steps to come") == 1


def test_other_values_than_the_step_before_had_are_computed_by_the_host() -> None:
    """A loss that is added to after the read does not show which loss goes backward."""

    def body(accelerator: Any, model: Any, optimizer: Any, x: Any, y: Any, read: List[Any]) -> None:
        optimizer.zero_grad()
        output = model(x)
        loss = F.cross_entropy(output, y)
        read.append(loss.item())
        loss = loss + 0.1 * output.square().mean()
        accelerator.backward(loss)
        optimizer.step()

    expected = train(Accelerator(cpu=True), body)
    forget()
    torch.testing.assert_close(train(IPUAccelerator(config=FUSED), body), expected, rtol=1e-4, atol=1e-5)


def between_backward_and_read(change: Callable[[Any], None]) -> Tuple[Any, Any]:
    """Return a loss that went backward before its model was changed, and its value in eager PyTorch."""
    model: Any = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(), nn.Linear(16, 2))
    native = copy.deepcopy(model)
    own = torch.optim.SGD(native.parameters(), lr=0.5)
    model, optimizer = IPUAccelerator(config=FUSED).prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))
    for net, update in ((native, own), (model, optimizer)):
        for _ in range(2):
            F.cross_entropy(net(X[0]), Y[0]).backward()
        update.step()
        update.zero_grad()
    loss, expected = (F.cross_entropy(net(X[1]), Y[1]) for net in (model, native))
    loss.backward()
    change(model)
    return loss, expected.detach()


def test_a_loss_is_not_computed_with_weights_that_were_written_after_its_call():
    """PyTorch has its value from before; the host, which computes it when it is read, refuses to."""

    def write(model: Any) -> None:
        with torch.no_grad():
            model[0].weight.mul_(0.5)

    loss, _ = between_backward_and_read(write)
    with pytest.raises(CaptureError, match="were written after that"):
        loss.item()


def test_a_loss_has_its_value_after_an_attribute_of_its_model_has_changed():
    """It is computed with the attributes of its call."""
    loss, expected = between_backward_and_read(lambda model: setattr(model[1], "negative_slope", 0.5))
    torch.testing.assert_close(loss.detach(), expected, rtol=1e-4, atol=1e-5)


def test_a_loss_has_its_value_after_a_change_to_evaluation_mode():
    """The statistics of the batch count in the read of a loss whose call was in training mode."""
    read = []
    for kind in (Accelerator, IPUAccelerator):
        accelerator = kind(cpu=True)
        torch.manual_seed(0)
        model: Any = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Linear(16, 2))
        model, _ = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))
        for x, y in zip(X[:3], Y):
            loss = F.cross_entropy(model(x), y)
            accelerator.backward(loss)
        model.eval()
        read.append(loss.item())
        forget()
    assert read == pytest.approx([read[0]] * 2)


@pytest.mark.parametrize("update", ["auto", "device", "host"])
def test_a_loss_of_two_models_is_read_before_backward(update: str) -> None:
    """One program has the calls of both, also in the first step, before which nothing has joined them."""

    def losses(**settings: Any) -> List[float]:
        torch.manual_seed(0)
        model, head = nn.Linear(6, 4), nn.Sequential(nn.Linear(4, 2), nn.Tanh())
        optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.5)
        if settings:
            ipu_prepare(optimizer, model, head, config=settings)
        found = []
        for x, y in zip(X, Y):
            optimizer.zero_grad()
            scores = model(x)
            loss = F.cross_entropy(scores[:, :2] + head(scores), y)
            found.append(loss.item())
            loss.backward()
            optimizer.step()
        return found

    assert losses(update=update) == pytest.approx(losses(), rel=1e-4)
