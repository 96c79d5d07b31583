"""Deferred tensors look like the tensors they stand for, and give their values when the step has run."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import gc
import inspect
import sys
import weakref
from collections import namedtuple
from typing import Any, Callable, Tuple
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ignite_ipu import IPUConfig, ipu_prepare
from ignite_ipu.deferred import (
    CaptureError,
    DeferredTensor,
    EarlyReadError,
    capture_model,
    capture_optimizer,
)
from ignite_ipu.deferred.tensor.functions import DIFFERENTIABLE_READS, READS

X = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()
Pair = namedtuple("Pair", "scores features")


@dataclasses.dataclass
class Output:
    scores: torch.Tensor
    name: str


class Model(nn.Module):
    def __init__(self, kind: str = "tensor") -> None:
        super().__init__()
        self.first = nn.Linear(6, 4)
        self.second = nn.Linear(4, 2)
        self.kind = kind

    def forward(self, x: torch.Tensor) -> Any:
        features = self.first(x).relu()
        scores = self.second(features)
        return {
            "tensor": scores,
            "pair": Pair(scores, features),
            "dict": {"scores": scores, "more": [features, None, 3]},
            "dataclass": Output(scores, "a name"),
        }[self.kind]


def prepared(kind: str = "tensor") -> Tuple[Model, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Model(kind)
    capture_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    capture_optimizer(optimizer)
    return model, optimizer


def test_shapes_types_and_structure() -> None:
    """Whatever a model returns comes back in its own shape."""
    scores = prepared()[0](X)
    assert isinstance(scores, DeferredTensor) and isinstance(scores, torch.Tensor)
    assert (scores.shape, scores.dtype, scores.device.type, len(scores)) == ((8, 2), torch.float32, "cpu", 8)
    assert scores.requires_grad and not scores.detach().requires_grad
    assert scores.argmax(-1).dtype is torch.int64 and (scores > 0).dtype is torch.bool
    pair = prepared("pair")[0](X)
    assert type(pair) is Pair and pair.features.shape == (8, 4)
    output = prepared("dict")[0](X)
    assert list(output) == ["scores", "more"] and output["more"][1:] == [None, 3]
    labelled = prepared("dataclass")[0](X)
    assert type(labelled) is Output and labelled.name == "a name" and labelled.scores.shape == (8, 2)


def test_values_are_the_native_ones() -> None:
    """Values recorded before the step, on the way to the loss or beside it, have the native numbers after it."""
    model, optimizer = prepared()
    native = copy.deepcopy(model)
    found = []
    for net in (native, model):
        scores = net(X)
        loss = F.cross_entropy(scores, Y)
        right = (scores.argmax(-1) == Y).type(torch.FloatTensor).mean() + (Y > 0).type(torch.float).mean()
        right += scores.detach().type("torch.DoubleTensor").type(torch.float32).sum()
        norms = [row.norm() for row in scores.detach()]
        loss.backward()
        if net is model:
            optimizer.step()
        found.append((loss, scores, right, torch.stack(norms)))
    for expected, value in zip(*found):
        torch.testing.assert_close(value.detach(), expected.detach())
        assert np.allclose(np.asarray(value.detach()), expected.detach().numpy())
    loss = found[1][0]
    assert float(loss) == loss.item() == loss.tolist() == pytest.approx(found[0][0].item())
    assert f"{loss:.3f}" == f"{found[0][0].item():.3f}" and str(loss).startswith("tensor(")
    assert (loss < 100) and bool(loss > 0)


def of_an_accumulated_update(native: bool = False) -> Any:
    """Return a loss that has not gone backward, after an update of two micro-batches."""
    model, optimizer = prepared()
    if native:
        model = copy.deepcopy(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        F.cross_entropy(model(X), Y).backward()
    optimizer.step()
    optimizer.zero_grad()
    return F.cross_entropy(model(X), Y)


@pytest.mark.parametrize(
    "read",
    [
        lambda loss: loss.item(),
        float,
        lambda loss: f"{loss:.6f}",
        lambda loss: loss.detach().cpu().numpy(),
        lambda loss: loss.tolist(),
        lambda loss: np.asarray(loss.detach()),
    ],
)
def test_reading_before_backward_where_gradients_accumulate(read: Any) -> None:
    """The host computes the value, from the weights after the update."""
    expected = of_an_accumulated_update(native=True).item()
    assert float(read(of_an_accumulated_update())) == pytest.approx(expected, rel=1e-5)


def test_a_function_that_checks_values_is_refused() -> None:
    """`gaussian_nll_loss` raises for variances below zero, which are unknown yet."""
    model, _ = prepared()
    scores = model(X)
    with pytest.raises(CaptureError, match=r"gaussian_nll_loss at .* or to check its arguments"):
        F.gaussian_nll_loss(scores[:, 0], X[:, 0], F.softplus(scores[:, 1]))


def test_what_is_sampled_and_read_is_refused_at_its_line() -> None:
    """The line of the read, not of the library."""
    model, _ = prepared()
    action = torch.bernoulli(torch.sigmoid(model(X)[0, 0]))
    line = inspect.currentframe().f_lineno + 2  # type: ignore[union-attr]
    with pytest.raises(EarlyReadError, match=f"test_tensor.py:{line} asks .* has not gone backward"):
        action.item()


def test_reading_between_backward_and_step_runs_the_update_once() -> None:
    """The number is the native one, and so are the weights."""
    model, optimizer = prepared()
    native = copy.deepcopy(model)
    own = torch.optim.SGD(native.parameters(), lr=0.1)
    for net, update in ((native, own), (model, optimizer)):
        for _ in range(3):
            update.zero_grad()
            loss = F.cross_entropy(net(X), Y)
            loss.backward()
            value = loss.item()
            update.step()
        if net is native:
            expected = value
    assert value == pytest.approx(expected)
    torch.testing.assert_close(model.state_dict(), native.state_dict())


def test_reading_while_gradients_accumulate_by_hand_is_found_out() -> None:
    """After updates of one micro-batch, the read made one where two were meant."""
    model, optimizer = prepared()
    F.cross_entropy(model(X), Y).backward()
    optimizer.step()
    optimizer.zero_grad()
    first = F.cross_entropy(model(X), Y)
    first.backward()
    first.item()
    with pytest.raises(CaptureError, match="the update was made from one micro-batch"):
        F.cross_entropy(model(X), Y).backward()


def test_learning_rate_changed_after_an_early_read() -> None:
    """The update has run with the old one."""
    model, optimizer = prepared()
    for number in range(2):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(X), Y)
        loss.backward()
        loss.item()
        if number == 0:
            optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.01
    with pytest.raises(CaptureError, match="hyper-parameters were changed in between"):
        optimizer.step()


def test_long_chains_beside_the_loss_have_a_value() -> None:
    """A total over many micro-batches, or a long computation on a value, is longer than Python's stack."""
    model, optimizer = prepared()
    total, length = torch.zeros(()), 3 * sys.getrecursionlimit()
    loss = F.cross_entropy(model(X), Y)
    for _ in range(length):
        total = total + loss.detach()
    loss.backward()
    optimizer.step()
    assert total.item() == pytest.approx(length * loss.item(), rel=1e-3)


def test_shared_values_are_computed_once() -> None:
    """Doubling a value again and again takes as long as the number of operations, not as the number of paths."""
    model, optimizer = prepared()
    loss = F.cross_entropy(model(X), Y)
    doubled = loss.detach()
    for _ in range(64):
        doubled = doubled + doubled
    loss.backward()
    optimizer.step()
    assert doubled.item() == pytest.approx(loss.item() * 2.0**64)


def test_a_loss_has_a_place_in_a_graph_as_long_as_gradients_flow_to_it() -> None:
    """Loops of libraries go backward from those results of a model that have a `grad_fn`."""
    model, _ = prepared()
    loss = F.cross_entropy(model(X), Y)
    assert loss.grad_fn is not None and loss.detach().grad_fn is None and not hasattr(loss.grad_fn, "__len__")
    with pytest.raises(CaptureError, match=r"grad_fn.next_functions at .*the graph of a value .* is the device's"):
        loss.grad_fn.next_functions  # noqa: B018
    loss.backward()


def test_debuggers_see_a_description() -> None:
    """repr never fails."""
    model, _ = prepared()
    assert repr(model(X)).startswith("DeferredTensor(size=(8, 2), dtype=torch.float32, known after optimizer.step();")


def test_totals_kept_in_place() -> None:
    """`total += loss` works on numbers, tensors and deferred tensors, and other names of the tensor follow."""
    model, optimizer = prepared()
    total, alias, expected = torch.zeros(()), torch.zeros(()), 0.0
    alias = total
    for _ in range(3):
        loss = F.cross_entropy(model(X), Y)
        total += loss.detach()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        expected += loss.item()
    assert float(total) == pytest.approx(expected) == pytest.approx(float(alias))


@pytest.mark.parametrize("read", [float, str, bool, torch.Tensor.item, torch.Tensor.tolist])
def test_other_names_of_a_total_have_no_old_value(read: Callable[[torch.Tensor], Any]) -> None:
    """They are read as the total itself is, before `backward()`, too; afterwards they are ordinary tensors."""
    model, optimizer = prepared()
    old = total = torch.zeros(())
    for _ in range(2):
        loss = F.cross_entropy(model(X), Y)
        total += loss.detach()
        assert repr(old) == repr(total)
        assert repr(old).startswith("DeferredTensor(size=(), dtype=torch.float32, known after optimizer.step();")
        assert read(old) == read(total) != read(torch.zeros(()))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        assert read(old) == read(total)
        assert type(old) is torch.Tensor and not vars(old)


def test_totals_that_are_never_trained_on_are_freed() -> None:
    """Values added to them are kept as long as they can still be trained on: here until the step that does."""
    model, optimizer = prepared()
    forgotten, memory = [], torch.zeros(1)

    def add(total: torch.Tensor) -> torch.Tensor:
        forgotten.append(weakref.ref(total))
        loss = F.cross_entropy(model(X), Y)
        total += loss.detach()
        return loss

    for _ in range(4):
        add(torch.zeros(()))
        F.cross_entropy(model(X), Y).backward()
        optimizer.step()
        optimizer.zero_grad()
    late = add(memory)
    gc.collect()
    assert [total() is None for total in forgotten] == [True, True, True, True, False]
    late.backward()
    optimizer.step()
    optimizer.zero_grad()
    assert memory.item() == pytest.approx(late.item()) and memory.item() > 0
    del late, memory
    gc.collect()
    assert forgotten[-1]() is None


def test_a_total_that_cannot_be_computed_keeps_no_other_from_its_value() -> None:
    """The step names the write that came too early; the other total has its value after the next one."""
    model, optimizer = prepared()
    mask, broken, total = torch.ones(2), torch.zeros(2), torch.zeros(())
    other_name = total
    for number in range(2):
        scores = model(X)
        loss = F.cross_entropy(scores, Y)
        if not number:
            broken += scores.detach().mean(0) * mask
            total += loss.detach()
            first = loss
            mask.zero_()
        loss.backward()
        with pytest.raises(CaptureError, match="changed in place") if not number else contextlib.nullcontext():
            optimizer.step()
        optimizer.zero_grad()
    assert type(other_name) is torch.Tensor
    assert other_name.item() == pytest.approx(first.item())


def test_other_names_of_a_total_take_part() -> None:
    """Results of them are those of the native loop, from the value before as from the one after."""
    results = []
    model, optimizer = prepared()
    native = copy.deepcopy(model)
    own = torch.optim.SGD(native.parameters(), lr=0.1)
    for net, update in ((native, own), (model, optimizer)):
        old = total = torch.ones(2)
        seen = []
        for _ in range(3):
            scores = net(X)
            before = old * 2 + scores.detach().mean(0)
            total += scores.detach().mean(0)
            total *= 2
            after = torch.stack([old, total]).sum() + old.clone()[0]
            loss = F.cross_entropy(scores * old, Y) + (before.sum() * scores).mean()
            loss.backward()
            update.step()
            update.zero_grad()
            seen += [before.sum().item(), after.item(), old.sum().item(), loss.item()]
        results.append(seen)
    assert results[1] == pytest.approx(results[0])
    torch.testing.assert_close(model.state_dict(), native.state_dict())


def test_losses_scaled_in_place() -> None:
    """`loss /= 2` is the loss that goes backward."""
    model, optimizer = prepared()
    native = copy.deepcopy(model)
    own = torch.optim.SGD(native.parameters(), lr=0.1)
    for net, update in ((native, own), (model, optimizer)):
        loss = F.cross_entropy(net(X), Y)
        loss = loss + 0
        loss /= 2
        loss += net(X * 2).mean()
        loss.backward()
        update.step()
    torch.testing.assert_close(model.state_dict(), native.state_dict())


@pytest.mark.parametrize(
    ("change", "written"),
    [
        (lambda b: b.clamp_(-0.2, 0.2), lambda b: b + (b.clamp(-0.2, 0.2) - b).detach()),
        (lambda b: b.__isub__(b.max(-1, keepdim=True).values), lambda b: b - b.max(-1, keepdim=True).values.detach()),
        (lambda b: b.mul_(3), lambda b: b + (b * 3 - b).detach()),
    ],
)
def test_in_place_without_gradients_keeps_the_gradient(change: Any, written: Any) -> None:
    """PyTorch changes the value alone; that is refused, and the code in the message does the same."""
    model, optimizer = prepared()
    native = copy.deepcopy(model)
    scores = native(X) * 1
    with torch.no_grad():
        change(scores)
    F.cross_entropy(scores, Y).backward()
    torch.optim.SGD(native.parameters(), lr=0.1).step()
    scores = model(X) * 1
    with pytest.raises(CaptureError, match=r"test_tensor\.py.*shape \(8, 2\) in place without.*x = x \+ .*detach\(\)"):
        with torch.no_grad():
            change(scores)
    F.cross_entropy(written(scores), Y).backward()
    optimizer.step()
    torch.testing.assert_close(model.second.weight.detach(), native.second.weight.detach())
    twice = scores.detach().clone()
    with torch.no_grad():
        twice.mul_(2)


def test_shapes_that_depend_on_values_are_refused() -> None:
    """The step is compiled for fixed shapes."""
    model, _ = prepared()
    scores = model(X)
    with pytest.raises(CaptureError, match=r"computes a tensor whose size depends on values.*repeat_interleave"):
        scores.repeat_interleave(scores.argmax(1), 0)


def test_no_read_loses_gradients() -> None:
    """A result that the host computes has PyTorch's gradients or, on the way to a loss, none and is refused."""
    lost = set()
    for name in READS:
        source = X.flatten().requires_grad_()
        function, arguments = getattr(torch.Tensor, name, None), [X.flatten() > 0] if name == "masked_select" else []
        with contextlib.suppress(Exception):  # no function of a tensor alone, or of one with gradients
            function(source * 1, *arguments).sum().backward()  # type: ignore[misc]
        lost |= set() if source.grad is None else {name}
    assert lost == DIFFERENTIABLE_READS
    model, _ = prepared()
    scores = model(X)
    assert scores.masked_select(scores > 0).min().item() > 0
    with pytest.raises(CaptureError, match="to_sparse"):
        scores.to_sparse()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda scores: scores.backward(), "a loss is a scalar"),
        (lambda scores: scores.mean().detach().backward(), "does not depend on trainable weights"),
        (lambda scores: scores.mean().backward(create_graph=True), "a program has one backward pass"),
        (lambda scores: scores.mean().backward(inputs=[X]), "with respect to all trainable weights"),
        (lambda scores: scores.cuda(), "runs on an IPU"),
        (lambda scores: scores.to("cuda"), "runs on an IPU"),
        (lambda scores: scores.register_hook(print), "do not run on a device"),
        (lambda scores: scores.sum(torch.as_tensor), "."),
    ],
)
def test_what_cannot_be_recorded(call: Any, message: str) -> None:
    """Refused where it is called."""
    model, _ = prepared()
    with pytest.raises((CaptureError, TypeError), match=message):
        call(model(X))


def test_moving_to_the_host_is_nothing() -> None:
    """`.to(device)` and `.cpu()` keep the tensor, casts are recorded."""
    model, _ = prepared()
    scores = model(X)
    assert scores.to("cpu") is scores and scores.cpu() is scores and scores.to(torch.float32) is scores
    assert scores.to("cpu", torch.float64).dtype is torch.float64


def test_second_backward_is_an_error() -> None:
    """As in PyTorch, once the graph is gone."""
    model, optimizer = prepared()
    loss = F.cross_entropy(model(X), Y)
    loss.backward()
    optimizer.step()
    with pytest.raises(CaptureError, match="has run already"):
        loss.backward()


def test_dropped_values_say_so() -> None:
    """zero_grad before the step leaves the loss without a value."""
    model, optimizer = prepared()
    loss = F.cross_entropy(model(X), Y)
    loss.backward()
    optimizer.zero_grad()
    with pytest.raises(EarlyReadError, match=r"dropped by zero_grad\(\) at .*test_tensor.py"):
        loss.item()


def test_recording_does_not_run_the_model() -> None:
    """After the first update the model's own code is not executed again but to see whether it computes the same."""
    model, optimizer = prepared()
    hook = mock.Mock(return_value=None)
    model.first.register_forward_hook(hook)
    for _ in range(5):
        F.cross_entropy(model(X), Y).backward()
        optimizer.step()
        optimizer.zero_grad()
    # For its setup, to find the shapes, twice, in the trace, and to compare with that later.
    assert hook.call_count == 5


@pytest.mark.skipif(
    "handle_torch_function" not in torch.autograd.backward.__code__.co_names,
    reason="torch.autograd.backward does not ask classes of tensors in PyTorch 2.0",
)
@pytest.mark.parametrize("update", ["device", "auto", "host"])
def test_several_tensors_go_backward_at_once(update: str) -> None:
    """With gradients for some, as `torch.autograd.backward` takes them."""
    weights = []
    for prepare in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if prepare:
            ipu_prepare(model, optimizer, config=IPUConfig(update=update))
        for number in range(4):
            scores = model(torch.ones(2, 4) * number)
            factors = torch.linspace(-1, 1, 6).view(2, 3)
            torch.autograd.backward([scores.square().mean(), scores], [None, factors])
            torch.autograd.backward(model(torch.ones(2, 4)), factors)
            losses = [model(torch.ones(2, 4)).mean(), scores.new_ones(()) * model(torch.ones(2, 4)).sum()]
            with torch.no_grad():
                torch.autograd.backward(losses)
            optimizer.step()
            optimizer.zero_grad()
        weights.append({name: each.detach().clone() for name, each in model.state_dict().items()})
    torch.testing.assert_close(weights[1], weights[0])


@pytest.mark.skipif(
    "handle_torch_function" not in torch.autograd.backward.__code__.co_names,
    reason="torch.autograd.backward does not ask classes of tensors in PyTorch 2.0",
)
def test_autograds_own_functions() -> None:
    """torch.autograd.backward is backward; gradients themselves cannot be had."""
    model, optimizer = prepared()
    native = copy.deepcopy(model)
    own = torch.optim.SGD(native.parameters(), lr=0.1)
    for net, update in ((native, own), (model, optimizer)):
        torch.autograd.backward([F.cross_entropy(net(X), Y)])
        update.step()
    torch.testing.assert_close(model.state_dict(), native.state_dict())
    with pytest.raises((CaptureError, RuntimeError)):
        torch.autograd.grad(model(X).sum(), model.first.weight)
