"""When weights cross between host and device, counted."""

from __future__ import annotations

import gc
import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ignite_ipu.emulator as poptorch
from ignite_ipu.emulator.runtime.program import DeviceProgram

X = torch.tensor([[1.0, 2.0]])


class Net(nn.Module):
    """A layer, a buffer that forward changes when asked to, and a loss."""

    def __init__(self, counting=False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(2, 2)
        self.counting = counting
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("scale", torch.ones(2))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        if self.counting:
            self.count.add_(1)
        out = self.fc(x) * self.scale
        return out, F.mse_loss(out, x), self.count * 1, self.steps + 0


BYTES = (4 + 2 + 2 + 1) * 4


def training(net, options=None, optimizer=None):
    return poptorch.trainingModel(net, options, optimizer or torch.optim.SGD(net.parameters(), lr=0.1))


def moved(model):
    counts = poptorch.counters(model)
    return counts.weight_uploads, counts.weight_downloads


def reference(updates, lr=0.1):
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    for _ in range(updates):
        optimizer.zero_grad()
        net(X)[1].backward()
        optimizer.step()
    return net


def close(net, other):
    torch.testing.assert_close(net.fc.weight.detach(), other.fc.weight.detach())


def test_training_uploads_once_and_downloads_when_asked():
    net = Net()
    model = training(net)
    for _ in range(3):
        model(X)
    assert moved(model) == (1, 0)
    model.copyWeightsToHost()
    model.copyWeightsToHost()
    assert moved(model) == (1, 2)
    counts = poptorch.counters(model)
    assert counts.weight_upload_bytes == BYTES and counts.weight_download_bytes == 2 * BYTES
    close(net, reference(3))


def test_inference_makes_nothing_dirty():
    net = Net(counting=True)
    model = poptorch.inferenceModel(net)
    model(X)
    assert model(X)[2] == 2
    assert model.copyWeightsToHostIfNeeded() is False
    assert net.count == 0
    model.copyWeightsToHost()
    assert net.count == 2


def test_copyWeightsToDevice_discards_what_the_device_learned():
    net = Net()
    model = training(net)
    model(X)
    model.copyWeightsToDevice()
    assert moved(model) == (2, 0)
    close(net, reference(0))
    model(X)
    close(net, reference(1))


def test_training_then_inference_moves_the_weights_once_per_switch():
    net = Net()
    train, infer = training(net), poptorch.inferenceModel(net)
    for rounds in range(1, 4):
        train(X)
        for _ in range(3):
            out = infer(X)[0]
        torch.testing.assert_close(out, reference(rounds)(X)[0].detach())
        assert moved(train) == (1, rounds)
        assert moved(infer) == (1 + rounds, 0), "the attach uploads, and so does each new version"


def test_inference_then_training_moves_nothing():
    net = Net()
    train, infer = training(net), poptorch.inferenceModel(net)
    infer(X)
    assert (moved(train), moved(infer)) == ((0, 0), (1, 0))
    train(X)
    assert (moved(train), moved(infer)) == ((1, 0), (1, 0))


def test_an_inference_wrapper_made_first_picks_weights_up_when_it_compiles_and_not_later():
    net = Net()
    infer = poptorch.inferenceModel(net)
    train = training(net)
    train(X)
    torch.testing.assert_close(infer(X)[0], reference(1)(X)[0].detach())
    train(X)
    torch.testing.assert_close(infer(X)[0], reference(1)(X)[0].detach())
    train.copyWeightsToHost()
    torch.testing.assert_close(infer(X)[0], reference(1)(X)[0].detach())
    infer.copyWeightsToDevice()
    torch.testing.assert_close(infer(X)[0], reference(2)(X)[0].detach())


@pytest.mark.parametrize("upload", ["copyWeightsToDevice", "attachToDevice"])
def test_an_upload_reads_the_parameters_and_so_makes_the_trainer_download(upload):
    """Of an inference wrapper that was made first, too."""
    net = Net()
    infer = poptorch.inferenceModel(net)
    train = training(net)
    infer.compile(X)
    train(X)
    if upload == "attachToDevice":
        infer.detachFromDevice()
    getattr(infer, upload)()
    assert moved(train) == (1, 1)
    torch.testing.assert_close(infer(X)[0], reference(1)(X)[0].detach())


def test_a_wrapper_around_the_inner_model_picks_weights_up_when_it_compiles():
    class Loss(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, x):
            return F.mse_loss(self.model(x), x)

    inner = nn.Linear(2, 2)
    start = inner(X).detach()
    train = training(Loss(inner))
    train(X)
    infer = poptorch.inferenceModel(inner)
    first = infer(X)
    assert not torch.equal(first, start)
    train(X)
    assert torch.equal(infer(X), first), "it is over another module object"


def test_when_the_trainer_is_gone_the_host_weights_are_uploaded_once_more():
    net = Net()
    train, infer = training(net), poptorch.inferenceModel(net)
    train(X)
    infer(X)
    train(X)
    uploads = moved(infer)[0]
    del train
    gc.collect()
    torch.testing.assert_close(infer(X)[0], reference(1)(X)[0].detach())
    infer(X)
    assert moved(infer)[0] == uploads + 1


def test_after_destroy_of_the_trainer_inference_has_its_last_weights():
    net = Net()
    train, infer = training(net), poptorch.inferenceModel(net)
    infer(X)
    train(X)
    train.destroy()
    torch.testing.assert_close(infer(X)[0], reference(1)(X)[0].detach())


def test_load_state_dict_of_the_model_stays_on_the_host_and_of_the_executor_is_uploaded():
    net, other = Net(), reference(7)
    model = training(net, optimizer=torch.optim.SGD(net.parameters(), lr=0.0))
    model(X)
    net.load_state_dict(other.state_dict())
    torch.testing.assert_close(model(X)[1], Net()(X)[1].detach())
    result = model.load_state_dict(other.state_dict())
    assert result.missing_keys == [] and result.unexpected_keys == []
    torch.testing.assert_close(model(X)[1], other(X)[1].detach())
    with pytest.raises(RuntimeError, match="Missing key"):
        model.load_state_dict({})
    assert model.load_state_dict({}, strict=False).missing_keys


def test_tensors_that_replace_others_are_uploaded_and_follow_the_training():
    """As `load_state_dict(assign=True)` does: the loaded tensors are in the model itself."""
    net, loaded = Net(), {name: torch.rand(shape) for name, shape in (("weight", (2, 2)), ("bias", 2), ("scale", 2))}
    wrapped = training(net)
    wrapped(X)
    net.fc.weight, net.fc.bias = nn.Parameter(loaded["weight"]), nn.Parameter(loaded["bias"])
    net.scale = loaded["scale"]
    expected, before = F.linear(X, loaded["weight"], loaded["bias"]) * loaded["scale"], loaded["weight"].clone()
    wrapped.copyWeightsToDevice()
    torch.testing.assert_close(wrapped(X)[0], expected)
    wrapped.copyWeightsToHost()
    assert not torch.equal(net.fc.weight.detach(), before)
    after = net.fc.weight.detach().clone()
    wrapped(X)
    assert not torch.equal(net.fc.weight.detach(), after), "reading it fetches the newest value"


def test_a_layer_that_replaces_another_is_uploaded_to_an_inference_executor():
    net = Net().eval()
    wrapped = poptorch.inferenceModel(net)
    wrapped(X)
    net.fc = nn.Linear(2, 2)
    wrapped.copyWeightsToDevice()
    torch.testing.assert_close(wrapped(X)[0], net.fc(X).detach())


@pytest.mark.parametrize(
    ("layer", "words"),
    [(nn.Linear(2, 3), r"fc.weight was replaced by one of shape \(3, 2\)"), (None, "fc.weight is gone")],
)
def test_a_layer_that_does_not_fit_is_left_out_with_one_warning(layer, words, caplog):
    """The program goes on with the old one, if it goes on at all."""
    net = Net()
    wrapped = training(net)
    expected = wrapped(X)[0]
    net.fc = layer
    for count in (0, 1):
        wrapped.copyWeightsToHost()
        assert len(re.findall(f"{words} since the model was compiled", caplog.text)) == count
        assert not torch.equal(wrapped(X)[0], expected)
    assert len(re.findall(f"{words} since the model was compiled", caplog.text)) == 1


def test_nothing_is_said_of_a_layer_that_does_not_fit_if_the_program_is_destroyed(caplog):
    net = Net()
    wrapped = training(net)
    wrapped(X)
    net.fc = None
    wrapped.copyWeightsToDevice()
    wrapped.destroy()
    assert "since the model was compiled" not in caplog.text


def test_load_state_dict_before_compiling_is_a_plain_load():
    net, other = Net(), reference(7)
    model = training(net, optimizer=torch.optim.SGD(net.parameters(), lr=0.0))
    model.load_state_dict(other.state_dict())
    torch.testing.assert_close(model(X)[1], other(X)[1].detach())
    assert moved(model) == (1, 0)


def test_detaching_downloads_and_attaching_uploads():
    net = Net()
    model = training(net)
    model(X)
    model.detachFromDevice()
    assert moved(model) == (1, 1)
    close(net, reference(1))
    with torch.no_grad():
        net.fc.weight.zero_()
    model.attachToDevice()
    assert moved(model) == (2, 1)
    expected = Net()
    expected.load_state_dict(net.state_dict())
    torch.testing.assert_close(model(X)[1], expected(X)[1].detach())


def test_a_call_attaches_again():
    net = Net()
    model = training(net)
    model(X)
    model.detachFromDevice()
    model(X)
    close(net, reference(2))


def test_integer_buffers_are_constants_that_uploads_do_not_reach(caplog):
    net = Net()
    model = poptorch.inferenceModel(net)
    assert model(X)[3] == 0
    assert "steps" in caplog.text and "was downgraded to constant" in caplog.text
    net.steps.add_(5)
    model.copyWeightsToDevice()
    assert model(X)[3] == 0


class Expanded(nn.Module):
    """A layer with a parameter and a buffer whose rows share memory."""

    def __init__(self, shared=True, writes=False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(2, 2)
        self.writes = writes
        self.row = torch.tensor([[1.0, 2.0]])
        self.register_buffer("scale", self.row.expand(3, 2))
        self.offset = nn.Parameter(torch.ones(1, 2).expand(3, 2) if shared else torch.ones(3, 2))

    def forward(self, x):
        if self.writes:
            self.scale[0].mul_(0.5)
        out = self.fc(x) * self.scale + self.offset
        return out, F.mse_loss(out, x)


def test_tensors_whose_elements_share_memory_come_back():
    """A buffer that does not change goes on sharing it, a parameter whose rows come to differ does not."""
    net, native, x = Expanded(), Expanded(shared=False), torch.randn(3, 2)
    model = training(net)
    optimizer = torch.optim.SGD(native.parameters(), lr=0.1)
    for _ in range(2):
        model(x)
        optimizer.zero_grad()
        native(x)[1].backward()
        optimizer.step()
    torch.testing.assert_close(net.state_dict(), native.state_dict())
    net.row.mul_(2)
    assert torch.equal(net.scale, net.row.expand(3, 2))


def test_a_lost_edit_of_a_buffer_whose_elements_share_memory_is_lost():
    """As of any other: the device's values are the newest."""
    net, x = Expanded(), torch.randn(3, 2)
    model = training(net)
    model(x)
    net.row.mul_(2)
    model(x)
    assert torch.equal(net.scale, torch.tensor([[1.0, 2.0]]).expand(3, 2))
    assert torch.equal(net.row, torch.tensor([[2.0, 4.0]]))


def test_writing_to_a_buffer_whose_elements_share_memory_is_refused():
    """On the host each write reaches all rows; on the device they have memory of their own."""
    with pytest.raises(poptorch.Error, match=r"buffer scale, of shape \(3, 2\) and strides \(0, 1\).*\.clone\(\)"):
        training(Expanded(writes=True))(torch.randn(3, 2))


def test_weights_that_a_failed_copy_did_not_bring_come_with_the_next(monkeypatch):
    net = Net()
    model = training(net)
    model(X)

    def fail(self):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(DeviceProgram, "download", fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            net.state_dict()
    close(net, reference(1))


def test_named_buffers_are_uploaded_alone():
    net = Net(counting=True)
    model = poptorch.inferenceModel(net, poptorch.Options().updatableNamedBuffers(["scale"]))
    first = model(X)
    net.scale.mul_(3)
    with torch.no_grad():
        net.fc.weight.zero_()
    before = poptorch.counters(model)
    model.copyNamedBuffersToDevice()
    second = model(X)
    torch.testing.assert_close(second[0], 3 * first[0])
    assert second[2] == 2, "the other buffer is left alone"
    assert (poptorch.counters(model) - before).weight_upload_bytes == 2 * 4


@pytest.mark.parametrize(
    ("names", "error", "words"),
    [
        (None, poptorch.Error, "No named buffers marked as updatable"),
        (["steps"], poptorch.Error, "steps"),
    ],
)
def test_named_buffers_that_cannot_be_uploaded(names, error, words):
    options = poptorch.Options()
    if names is not None:
        options.updatableNamedBuffers(names)
    model = poptorch.inferenceModel(Net(), options)
    model(X)
    with pytest.raises(error, match=words):
        model.copyNamedBuffersToDevice()


def test_an_updatable_buffer_that_the_model_has_not_is_never_updated(caplog):
    """A warning names it; the others are uploaded."""
    net = Net()
    model = poptorch.inferenceModel(net, poptorch.Options().updatableNamedBuffers(["scale", "absent"]))
    before = model(X)[0]
    net.scale.mul_(2)
    model.copyNamedBuffersToDevice()
    assert not torch.equal(model(X)[0], before)
    assert "names 'absent', which is no buffer of the model" in caplog.text


def test_replicas_need_leave_to_have_buffers_of_their_own():
    rows = torch.tensor([[9.0, 9.0], [2.0, 2.0]])

    class Adds(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(1, 2))

        def forward(self, x):
            self.total.add_(x)
            return self.total * 1

    with pytest.raises(poptorch.Error, match="PopTorch does not support broadcasting buffers"):
        poptorch.inferenceModel(Adds(), poptorch.Options().replicationFactor(2))(rows)
    net = Adds()
    model = poptorch.inferenceModel(net, poptorch.Options().replicationFactor(2).broadcastBuffers(False))
    for call in range(1, 4):
        assert torch.equal(model(rows), call * rows)
    model.copyWeightsToHost()
    assert net.total.tolist() == [[27.0, 27.0]], "the first replica's"
    together = poptorch.Options().replicationFactor(2).inputReplicaGrouping(2, poptorch.CommGroupType.Consecutive)
    assert torch.equal(poptorch.inferenceModel(Adds(), together)(rows[:1]), rows[:1].repeat(2, 1))


UNCOMPILED = {
    "copyWeightsToHost": lambda model: model.copyWeightsToHost(),
    "copyWeightsToDevice": lambda model: model.copyWeightsToDevice(),
    "copyNamedBuffersToDevice": lambda model: model.copyNamedBuffersToDevice(),
    "rng_state": lambda model: model.rng_state,
    "setting rng_state": lambda model: setattr(model, "rng_state", [1]),
    "save": lambda model: model.save("/nowhere/file"),
    "attachToDevice": lambda model: model.attachToDevice(),
    "detachFromDevice": lambda model: model.detachFromDevice(),
}


@pytest.mark.parametrize("call", UNCOMPILED)
@pytest.mark.parametrize("destroyed", [False, True])
def test_what_needs_a_compiled_model_says_so(call, destroyed):
    model = training(Net())
    if destroyed:
        model(X)
        model.destroy()
    with pytest.raises(poptorch.Error, match="has not been compiled or has been destroyed"):
        UNCOMPILED[call](model)


class TestEditsOfHostWeights:
    """A download that replaces an edit is reported, once."""

    def edit(self, net):
        with torch.no_grad():
            net.fc.weight.mul_(2)

    def test_an_edit_that_is_lost_is_reported_once(self, caplog):
        net = Net()
        model = training(net)
        for _ in range(2):
            model(X)
            self.edit(net)
            model(X)
            _ = net.fc.weight.shape
        assert caplog.text.count("edited on the host") == 1
        assert "fc.weight" in caplog.text and "fc.bias" not in caplog.text

    def test_an_edit_that_is_uploaded_is_none(self, caplog):
        net = Net()
        model = training(net)
        model(X)
        self.edit(net)
        model.copyWeightsToDevice()
        model(X)
        _ = net.fc.weight.shape
        model.load_state_dict(Net().state_dict())
        model(X)
        _ = net.fc.weight.shape
        model.detachFromDevice()
        self.edit(net)
        model(X)
        _ = net.fc.weight.shape
        assert "edited on the host" not in caplog.text

    def test_an_inference_executor_reports_an_edit_at_the_next_call(self, caplog):
        """It has no download; PopTorch's executor keeps the previous weights, too."""
        net = Net()
        infer = poptorch.inferenceModel(net)
        before = infer(X)[0]
        self.edit(net)
        assert torch.equal(infer(X)[0], before) and torch.equal(infer(X)[0], before)
        assert caplog.text.count("fc.weight: edited on the host") == 1
        infer.copyWeightsToDevice()
        assert not torch.equal(infer(X)[0], before)

    def test_an_edit_that_changes_nothing_is_none(self, caplog):
        net = Net()
        infer = poptorch.inferenceModel(net)
        infer(X)
        net.load_state_dict(net.state_dict())
        infer(X)
        assert "edited on the host" not in caplog.text

    def test_plain_use_is_none(self, caplog):
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        model = training(net, optimizer=optimizer)
        infer = poptorch.inferenceModel(net)
        for _ in range(3):
            optimizer.zero_grad()
            model(X)
            optimizer.step()
            infer(X)
            net.state_dict()
        assert "edited on the host" not in caplog.text
