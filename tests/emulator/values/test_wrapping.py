"""Effects of wrapping for training on the user's model, and their end."""

from __future__ import annotations

import copy
import gc
import io
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ignite_ipu.emulator as poptorch


class Tied(nn.Module):
    """Two layers that share a weight, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(3, 3, bias=False)
        self.second = nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x):
        self.seen.add_(x.mean(0))
        return F.mse_loss(self.second(self.first(x)), x)


class Plain(nn.Module):
    """A layer and no buffers."""

    def __init__(self, layer=None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(3, 3) if layer is None else layer

    def forward(self, x):
        return F.mse_loss(self.fc(x), x)


class Loss(nn.Module):
    """Adds a loss to another model."""

    def __init__(self, model) -> None:
        super().__init__()
        self.model = model

    def forward(self, x):
        return F.mse_loss(self.model(x), x)


X = torch.tensor([[1.0, 2.0, 3.0]])


def wrap(net):
    return poptorch.trainingModel(net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1))


def downloads(model) -> int:
    return poptorch.counters(model).weight_downloads


def test_classes_are_swapped_and_stay_subclasses():
    net = Tied()
    model = wrap(net)
    assert type(net).__name__ == "PoptorchTied" and isinstance(net, Tied)
    assert type(net.first.weight) is model.PoptorchParameter and isinstance(net.first.weight, nn.Parameter)
    assert type(net.seen) is model.PoptorchBuffer and isinstance(net.seen, torch.Tensor)
    assert net.first.weight is net.second.weight
    assert type(net.first) is nn.Linear


ACCESSES = {
    "a weight's value": lambda net: net.first.weight.sum(),
    "a weight's shape": lambda net: net.first.weight.shape,
    "a weight's class": lambda net: net.first.weight.__class__,
    "asking for another class": lambda net: isinstance(net.first.weight, dict),
    "asking whether a buffer is a parameter": lambda net: isinstance(net.seen, nn.Parameter),
    "a buffer's device": lambda net: net.seen.device,
    "state_dict": lambda net: net.state_dict(),
    "parameters": lambda net: list(net.parameters()),
    "buffers": lambda net: list(net.buffers()),
    "torch.equal": lambda net: torch.equal(net.first.weight, net.second.weight),
    "running it on the host": lambda net: net.eval()(X),
    "a submodule": lambda net: net.first(X),
    "pickle": lambda net: pickle.dumps(net.first.weight),
    "copyWeightsToHostIfNeeded": lambda net: net.copyWeightsToHostIfNeeded(),
}


@pytest.mark.parametrize("access", ACCESSES)
def test_an_access_downloads_the_newest_weights_exactly_once(access):
    net = Tied()
    model = wrap(net)
    model(X)
    assert downloads(model) == 0
    ACCESSES[access](net)
    assert downloads(model) == 1
    ACCESSES[access](net)
    assert downloads(model) == 1
    model(X)
    ACCESSES[access](net)
    assert downloads(model) == 2


@pytest.mark.parametrize("access", [lambda net: net.train(), lambda net: net.eval(), lambda net: net.training])
def test_the_mode_of_the_model_is_no_reason_to_download(access):
    net = Tied()
    model = wrap(net)
    model(X)
    access(net)
    assert downloads(model) == 0


def test_copyWeightsToHostIfNeeded_tells_whether_it_copied():
    net = Plain()
    model = wrap(net)
    assert net.copyWeightsToHostIfNeeded() is False
    model(X)
    assert net.copyWeightsToHostIfNeeded() is True
    assert model.copyWeightsToHostIfNeeded() is False


def test_state_dict_holds_plain_parameters_and_shared_ones_once():
    net = Tied()
    model = wrap(net)
    model(X)
    state = net.state_dict()
    assert {type(value) for name, value in state.items() if name != "seen"} == {torch.Tensor}
    assert state["first.weight"] is state["second.weight"]
    assert list(state) == list(Tied().state_dict())
    assert torch.equal(state["first.weight"], net.first.weight.detach())
    assert {type(value) for value in net.state_dict(keep_vars=True).values()} == {torch.Tensor}
    best = copy.deepcopy({name: value for name, value in state.items() if name != "seen"})
    model(X)
    net.copyWeightsToHostIfNeeded()
    assert not torch.equal(best["first.weight"], state["first.weight"])
    del model


def test_what_is_computed_from_a_buffer_keeps_its_class_and_from_a_parameter_does_not():
    """As PyTorch has it for subclasses: a state dictionary holds such tensors, and each of them asks the device."""
    net = Tied()
    model = wrap(net)
    for compute in (torch.Tensor.detach, torch.clone, lambda tensor: tensor + 1, lambda tensor: tensor.view(-1)):
        assert type(compute(net.seen)) is model.PoptorchBuffer
        assert type(compute(net.first.weight)) is torch.Tensor
    computed = net.state_dict()["seen"]
    assert type(computed) is model.PoptorchBuffer
    model(X)
    _ = computed.shape
    assert downloads(model) == 1
    duplicate = copy.deepcopy(computed)
    assert type(duplicate) is torch.Tensor
    assert torch.equal(duplicate, X[0])


def test_pickles_hold_the_original_classes():
    net = Plain()
    model = wrap(net)
    model(X)
    data = pickle.dumps(net)
    assert b"ignite_ipu" not in data.replace(b"test_wrapping", b"") and b"Poptorch" not in data
    loaded = pickle.loads(data)
    assert type(loaded) is Plain and type(loaded.fc.weight) is nn.Parameter
    torch.testing.assert_close(loaded.state_dict(), net.state_dict())
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    assert type(torch.load(file, weights_only=False)) is Plain
    assert type(net).__name__ == "PoptorchPlain" and model.isCompiled()


@pytest.mark.parametrize("what", ["the model", "its state", "a buffer", "a tensor computed from one"])
def test_files_with_buffers_name_the_library(what):
    """They load beside it alone, never as weights only, and become ordinary tensors."""
    net = Tied()
    model = wrap(net)
    model(X)
    data = {
        "the model": lambda: net,
        "its state": net.state_dict,
        "a buffer": lambda: net.seen,
        "a tensor computed from one": lambda: 2 * net.seen,
    }[what]()
    file = io.BytesIO()
    torch.save(data, file)
    assert b"ignite_ipu.emulator" in file.getvalue() and b"Poptorch" not in file.getvalue()
    file.seek(0)
    with pytest.raises(pickle.UnpicklingError, match="Unsupported"):
        torch.load(file, weights_only=True)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    buffer = {"the model": lambda: loaded.seen, "its state": lambda: loaded["seen"]}.get(what, lambda: loaded)()
    assert type(buffer) is torch.Tensor
    assert torch.equal(buffer, X[0] * (2 if what == "a tensor computed from one" else 1))


def test_a_shallow_copy_stays_wrapped():
    net = Plain()
    model = wrap(net)
    duplicate = copy.copy(net)
    assert type(duplicate) is type(net) and duplicate.fc is net.fc
    model(X)
    assert duplicate.copyWeightsToHostIfNeeded() is True


def test_a_deep_copy_is_unwrapped_and_belongs_to_no_executor():
    """It has the newest weights and buffers, shares them as the model does, and later updates leave it alone."""
    net = Tied()
    net.second.weight.requires_grad_(False)
    model = wrap(net)
    model(X)
    duplicate = copy.deepcopy(net)
    assert type(duplicate) is Tied
    assert (type(duplicate.first.weight), type(duplicate.seen)) == (nn.Parameter, torch.Tensor)
    assert duplicate.first.weight is duplicate.second.weight
    assert not duplicate.first.weight.requires_grad
    torch.testing.assert_close(dict(duplicate.state_dict()), {k: v.clone() for k, v in net.state_dict().items()})
    kept = duplicate.seen.clone()
    assert torch.equal(kept, X[0])
    model(X)
    before = downloads(model)
    assert torch.equal(duplicate.seen, kept)
    assert downloads(model) == before
    assert torch.equal(net.seen, 2 * kept)


def test_a_deep_copy_trains_as_the_model_does():
    net = Plain()
    model = wrap(net)
    model(X)
    duplicate = copy.deepcopy(net)
    optimizer = torch.optim.SGD(duplicate.parameters(), lr=0.1)
    duplicate(-X).backward()
    optimizer.step()
    assert not torch.allclose(duplicate.fc.weight, net.fc.weight)
    model(-X)
    torch.testing.assert_close(duplicate.fc.weight.detach(), net.fc.weight.detach())


def test_a_deep_copy_can_be_wrapped_and_belongs_to_its_new_executor():
    net = Plain()
    first = wrap(net)
    first(X)
    duplicate = copy.deepcopy(net)
    start = duplicate.fc.weight.detach().clone()
    second = wrap(duplicate)
    assert type(duplicate.fc.weight) is second.PoptorchParameter
    second(X)
    first(X)
    assert not torch.equal(duplicate.fc.weight.detach(), start)
    assert (downloads(first), downloads(second)) == (1, 1)


def test_dropping_the_executor_leaves_the_last_downloaded_weights():
    net = Plain()
    model = wrap(net)
    model(X)
    seen = net.fc.weight.detach().clone()
    model(X)
    del model
    gc.collect()
    assert torch.equal(net.fc.weight.detach(), seen)
    assert net.copyWeightsToHostIfNeeded() is False
    net.destroy()
    with pytest.raises(RuntimeError, match="already been wrapped"):
        wrap(net)


def test_the_inner_model_of_a_dropped_wrapper_is_tied_to_the_next_one():
    """Parameters that still have the class of an executor that is gone must serve the new one."""
    inner = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    first = wrap(Loss(inner))
    rows = torch.randn(4, 3)
    first(rows)
    del first
    gc.collect()
    second = wrap(Loss(inner))
    start = inner[0].weight.detach().clone()
    assert type(inner[0].weight) is second.PoptorchParameter
    assert type(inner[1].running_mean) is second.PoptorchBuffer
    second(rows)
    assert not torch.equal(inner[0].weight.detach(), start)
    assert downloads(second) == 1
    second.destroy()
    assert type(inner[0].weight) is nn.Parameter and type(inner[1].running_mean) is torch.Tensor


def test_weights_of_a_living_executor_are_fetched_before_they_change_hands():
    inner = nn.Linear(3, 3)
    first = wrap(Loss(inner))
    start = inner.weight.detach().clone()
    first(X)
    second = wrap(Loss(inner))
    assert downloads(first) == 1
    assert not torch.equal(inner.weight.detach(), start)
    first.destroy()
    assert type(inner.weight) is second.PoptorchParameter, "another executor's class must stay"


def test_destroy_unwraps_and_keeps_the_trained_weights():
    net = Tied()
    model = wrap(net)
    start = net.first.weight.detach().clone()
    model(X)
    net.destroy()
    assert type(net) is Tied and type(net.first.weight) is nn.Parameter and type(net.seen) is torch.Tensor
    assert not torch.equal(net.first.weight, start) and torch.equal(net.seen, X[0])
    assert not model.isCompiled() and not model.isAttachedToDevice()
    again = wrap(net)
    again(X)


def test_destroy_before_a_compile_does_nothing():
    net = Plain()
    model = wrap(net)
    model.destroy()
    assert type(net).__name__ == "PoptorchPlain"
    with pytest.raises(RuntimeError, match="already been wrapped"):
        wrap(net)


def test_a_destroyed_executor_compiles_again_without_wrapping_the_model():
    net = Plain()
    model = wrap(net)
    model(X)
    model.destroy()
    model(torch.cat([X, X]))
    assert type(net) is Plain and type(net.fc.weight) is model.PoptorchParameter
    before = downloads(model)
    _ = net.fc.weight.shape
    assert downloads(model) == before + 1
    with pytest.raises(poptorch.Error, match="model was never wrapped"):
        model.destroy()
    assert not model.isCompiled() and type(net.fc.weight) is nn.Parameter


def test_inference_wrappers_leave_the_model_alone():
    net = Plain()
    models = [poptorch.inferenceModel(net) for _ in range(2)]
    for model in models:
        model(X)
    assert type(net) is Plain and type(net.fc.weight) is nn.Parameter
    models[0].destroy()
    assert models[1](X) == models[1](X)


def test_buffers_must_be_plain_tensors():
    net = Plain()
    net.register_buffer("b", nn.Parameter(torch.ones(1)))
    with pytest.raises(poptorch.Error, match="All buffers must be an instance of"):
        wrap(net)
    assert type(net) is Plain and type(net.fc.weight) is nn.Parameter


def test_a_model_is_wrapped_for_training_once_and_for_inference_as_often_as_wanted():
    net = Plain()
    model = wrap(net)
    with pytest.raises(RuntimeError, match="Model has already been wrapped in"):
        poptorch.trainingModel(net)
    with pytest.raises(RuntimeError, match="Model has already been wrapped in"):
        poptorch.trainingModel(model)
    assert poptorch.inferenceModel(model)(X) == poptorch.inferenceModel(net)(X)
