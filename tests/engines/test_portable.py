"""Functions that migrated code calls compute the same on the host and on the emulator."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from torch import nn

from ignite_ipu import create_ipu_evaluator, create_ipu_trainer
from ignite_ipu.engines import portable
from ignite_ipu.engines.portable import host_device, ipu_evaluate_batch, ipu_train_batch, process_backend
from ignite_ipu.errors import ProcessesError


@pytest.fixture(params=["native", "emulator"])
def backend(request, monkeypatch):
    monkeypatch.setenv("IGNITE_IPU_BACKEND", request.param)
    return request.param


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.drop = nn.Dropout(0.5)

    def forward(self, x, shift=None):
        y = self.layer(x)
        return {"logits": y if shift is None else y + shift, "kept": self.drop(torch.ones_like(y))}


def plain_step(model, optimizer, loss_fn, x, target, clip=None):
    optimizer.zero_grad()
    loss = loss_fn(model(x), target)
    loss.backward()
    if clip is not None:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    return loss.item()


@pytest.mark.parametrize(("clip", "momentum"), [(None, 0.9), (0.05, 0.0)])
def test_steps_equal_a_plain_loop(backend, clip, momentum):
    """Five steps of SGD on the same batches, with momentum or with clipping."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    reference = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    plain = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=momentum)
    loss_fn = nn.MSELoss()
    for _ in range(5):
        x, y = torch.randn(8, 3), torch.randn(8, 2)
        _, loss = ipu_train_batch(model, optimizer, loss_fn, x, target=y, max_grad_norm=clip)
        assert loss.item() == pytest.approx(plain_step(reference, plain, loss_fn, x, y, clip), rel=1e-5)
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-5, atol=1e-6)


def test_outputs_keep_their_structure_and_have_no_gradient(backend):
    model = TwoInputs()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_fn(output, target):
        return nn.functional.mse_loss(output["logits"], target)

    x, shift, target = torch.randn(4, 3), torch.randn(4, 2), torch.randn(4, 2)
    output, loss = ipu_train_batch(model, optimizer, loss_fn, x, target=target, shift=shift)
    assert set(output) == {"logits", "kept"}
    assert not output["logits"].requires_grad
    assert not loss.requires_grad
    assert loss.shape == ()


def test_evaluation_sees_the_newest_weights_and_any_number_of_rows(backend):
    model = TwoInputs()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    def loss_fn(output, target):
        return nn.functional.mse_loss(output["logits"], target)

    ipu_train_batch(model, optimizer, loss_fn, torch.randn(4, 3), target=torch.randn(4, 2))
    model.eval()
    for rows in (4, 4, 3):
        x = torch.randn(rows, 3)
        output = ipu_evaluate_batch(model, x)
        weight, bias = model.state_dict()["layer.weight"], model.state_dict()["layer.bias"]
        torch.testing.assert_close(output["logits"], x @ weight.T + bias)
        assert torch.equal(output["kept"], torch.ones(rows, 2))


class Summing(nn.Module):
    """Adds up its inputs so far along the first dimension, which is time."""

    def forward(self, x):
        return x.cumsum(0)


class Placed(nn.Module):
    """Adds a number that depends on the place in a sequence."""

    def __init__(self):
        super().__init__()
        self.places = nn.Parameter(torch.arange(32.0).reshape(32, 1))

    def forward(self, x):
        return x + self.places[: len(x)]


class Mixing(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


class Steady(nn.Module):
    def forward(self, x):
        return 2.0 * x


@pytest.mark.parametrize("first", [1, 4, 5])
@pytest.mark.parametrize(("module", "compiled"), [(Summing, 2), (Placed, 2), (Mixing, 2), (Steady, 1)])
def test_a_larger_batch_is_cut_only_where_that_changes_nothing(monkeypatch, caplog, module, compiled, first):
    """Where rows depend on each other or on their place, the larger batch gets a program of its own."""
    monkeypatch.setenv("IGNITE_IPU_BACKEND", "emulator")
    model = module()
    for rows in (first, 12, 12):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(ipu_evaluate_batch(model, x), model(x).detach(), rtol=1e-4, atol=1e-5)
    said = [record for record in caplog.records if "compiled again for batches of 12 rows" in record.getMessage()]
    assert len(said) == (compiled - 1 if first > 1 else 1)


def test_a_batch_is_one_forward_whatever_the_trainers_calls_are(monkeypatch):
    monkeypatch.setenv("IGNITE_IPU_BACKEND", "emulator")
    model = nn.Sequential(nn.Linear(3, 3), Summing())
    create_ipu_trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss(), device_iterations=4)
    x = torch.randn(8, 3)
    torch.testing.assert_close(ipu_evaluate_batch(model, x), model(x).detach(), rtol=1e-4, atol=1e-5)


class Scaled(nn.Module):
    """A loss with a factor: a saved buffer, one that is not saved, an attribute, or that of a module within."""

    def __init__(self, factor, kind):
        super().__init__()
        self.factor = factor
        if kind == "tensor":
            self.factor = torch.full((2,), factor)
        elif kind == "within":
            self.factor = 1.0
            self.within = Scaled(factor, "number")
        elif kind != "number":
            del self.factor
            self.register_buffer("factor", torch.full((2,), factor), persistent=kind == "saved")

    def forward(self, output, y):
        loss = ((output - y).abs() * self.factor).mean()
        return loss + self.within(output, y) if "within" in self._modules else loss


def function(factor, criterion):
    return lambda output, y, scale=1.0: factor * criterion(output, y) * scale


def weighted(output, y, factors):
    return ((output - y).abs() * torch.tensor(factors["all"])).mean()


class Task:
    """A method of it is the loss, another object at each access."""

    factor = 1.0

    def loss(self, output, y):
        return self.factor * nn.functional.mse_loss(output, y)


TASK = Task()


def method(factor):
    TASK.factor = factor
    return TASK.loss


LOSSES = {
    **{kind: functools.partial(Scaled, kind=kind) for kind in ("number", "tensor", "saved", "unsaved", "within")},
    "function": lambda factor: function(factor, nn.MSELoss()),
    "function with a tensor": lambda factor: function(torch.tensor(factor), nn.L1Loss()),
    "arguments": lambda factor: functools.partial(weighted, factors={"all": [factor, 1.0]}),
    "criterion": lambda factor: function(1.0, nn.MSELoss() if factor < 1 else nn.L1Loss()),
}


def trained_by(make_losses):
    """Return the losses of a device and of plain PyTorch, each with losses of its own, and the device's programs."""
    model = nn.Linear(3, 2)
    reference = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plain = torch.optim.SGD(reference.parameters(), lr=0.1)
    batches = [(torch.randn(4, 3), torch.randn(4, 2)) for _ in range(8)]
    losses, programs = [], []
    for loss_fn, (x, y) in zip(make_losses(), batches):
        losses.append(ipu_train_batch(model, optimizer, loss_fn, x, target=y)[1].item())
        programs.append(portable._programs_of(model).training.program)
    return losses, [plain_step(reference, plain, *each) for each in zip(make_losses(), *zip(*batches))], programs


@pytest.mark.parametrize("make", LOSSES.values(), ids=LOSSES)
def test_a_loss_made_anew_is_the_same_loss(monkeypatch, make):
    """Training functions make a loss at each call; that must not compile again, unless it computes another one."""
    monkeypatch.setenv("IGNITE_IPU_BACKEND", "emulator")
    losses, expected, programs = trained_by(lambda: map(make, (0.5, 0.5, 2.0, 2.0)))
    assert losses == pytest.approx(expected, rel=1e-5)
    assert programs[0] is programs[1] is not programs[2] is programs[3]


def test_a_bound_method_is_the_same_loss(monkeypatch):
    """Of the same object, whose new values are compiled anew."""
    monkeypatch.setenv("IGNITE_IPU_BACKEND", "emulator")
    losses, expected, programs = trained_by(lambda: map(method, (0.5, 0.5, 2.0, 2.0)))
    assert losses == pytest.approx(expected, rel=1e-5) and len(set(programs)) == 1


class Growing(nn.Module):
    """A loss that counts its calls, and grows with them."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, output, y):
        self.calls += 1
        return (output - y).abs().mean() * self.calls.sum()


def test_losses_with_state_have_it_for_themselves(monkeypatch):
    """Two that have made equally many calls are not the same."""
    monkeypatch.setenv("IGNITE_IPU_BACKEND", "emulator")
    losses, expected, _ = trained_by(lambda: [Growing(), Growing()] * 4)
    assert losses == pytest.approx(expected, rel=1e-5)


def test_momentum_survives_another_loss(monkeypatch):
    """A new program takes over the optimizer's state."""
    monkeypatch.setenv("IGNITE_IPU_BACKEND", "emulator")
    model = nn.Linear(3, 2)
    reference = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    plain = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9)
    for loss_fn in (nn.MSELoss(), nn.L1Loss(), nn.L1Loss()):
        x, y = torch.randn(4, 3), torch.randn(4, 2)
        ipu_train_batch(model, optimizer, loss_fn, x, target=y)
        plain_step(reference, plain, loss_fn, x, y)
    torch.testing.assert_close(model.state_dict()["weight"], reference.weight.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), "with momentum=0.9"),
        (lambda p: torch.optim.RMSprop(p), "RMSprop cannot clip"),
    ],
)
def test_clipping_that_would_differ_is_refused(backend, make, message):
    """PopTorch's SGD clips the velocity; torch clips the gradient."""
    model = nn.Linear(3, 2)
    arguments = (model, make(model.parameters()), nn.MSELoss(), torch.randn(4, 3))
    with pytest.raises(ValueError, match=message):
        ipu_train_batch(*arguments, target=torch.randn(4, 2), max_grad_norm=1.0)


def test_devices(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("IGNITE_IPU_BACKEND", "native")
    assert (host_device(), host_device("cuda:1")) == (torch.device("cuda"), torch.device("cuda:1"))
    assert process_backend("nccl") == "nccl"
    monkeypatch.setenv("IGNITE_IPU_BACKEND", "emulator")
    assert host_device("cuda:1") == torch.device("cpu")
    assert process_backend("nccl") == "gloo"


def test_auto_model_wraps_natively_only(monkeypatch):
    model = nn.Linear(2, 2)
    monkeypatch.setenv("IGNITE_IPU_BACKEND", "emulator")
    assert portable.auto_model(model, sync_bn=True) is model
    monkeypatch.setenv("IGNITE_IPU_BACKEND", "native")
    assert portable.auto_model(model) is model


def test_native_engines_run_where_the_model_is(monkeypatch):
    monkeypatch.setenv("IGNITE_IPU_BACKEND", "native")
    model = nn.Linear(3, 2)
    trainer = create_ipu_trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss())
    state = trainer.run([(torch.randn(4, 3), torch.randn(4, 2))])
    assert isinstance(state.output, float)
    evaluator = create_ipu_evaluator(model)
    assert evaluator.run([(torch.randn(4, 3), torch.randn(4, 2))]).output[0].shape == (4, 2)


def test_a_seed_of_a_trainer_seeds_the_host_on_either_side(backend):
    """Loaders that shuffle give the same order on both."""
    model = nn.Linear(3, 2)
    create_ipu_trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss(), seed=3)
    assert torch.initial_seed() == 3
    drawn = torch.rand(2)
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.rand(2))


def test_native_engines_do_not_pretend_to_clip(monkeypatch):
    monkeypatch.setenv("IGNITE_IPU_BACKEND", "native")
    model = nn.Linear(3, 2)
    with pytest.raises(ValueError, match="does not clip"):
        create_ipu_trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss(), max_grad_norm=1.0)


class OwnLoss(nn.Module):
    """Returns its loss beside its output, in the manner that the test says."""

    def __init__(self, form):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.form = form

    def forward(self, x, labels=None):
        y = self.layer(x)
        loss = None if labels is None else (y - labels).pow(2).mean()
        return {"loss": loss, "tuple": (y, loss), "mapping": {"loss": loss, "logits": y}}[self.form]


@pytest.mark.parametrize("form", ["loss", "tuple", "mapping"])
def test_models_that_return_their_loss(backend, form):
    """No loss function, no target, and the inputs from a dictionary: the same as differentiating the loss."""
    model = OwnLoss(form)
    reference = copy.deepcopy(model.layer)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plain = torch.optim.SGD(reference.parameters(), lr=0.1)
    for _ in range(3):
        batch = {"x": torch.randn(4, 3), "labels": torch.randn(4, 2)}
        output, loss = ipu_train_batch(model, optimizer, None, **batch)
        expected = plain_step(reference, plain, nn.MSELoss(), batch["x"], batch["labels"])
        assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert not loss.requires_grad
    torch.testing.assert_close(model.layer.weight.detach(), reference.weight.detach(), rtol=1e-5, atol=1e-6)
    assert type(output) is {"loss": torch.Tensor, "tuple": tuple, "mapping": dict}[form]


def test_a_model_without_a_loss_is_refused(backend):
    model = OwnLoss("mapping")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(Exception, match="no loss under 'loss'"):
        ipu_train_batch(model, optimizer, None, torch.randn(4, 3))


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)

    def forward(self, x):
        return self.last(torch.tanh(self.norm(self.first(x))))


def unfreeze(model, step):
    model.first.requires_grad_(step > 1)


def freeze_normalisation(model, step):
    model.train()
    model.norm.train(step < 2)


def stay_in_evaluation_mode(model, step):
    model.eval()


def clamp(model, step):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.clamp_(-0.2, 0.2)


def replace_data(model, step):
    model.last.weight.data = model.last.weight.data * 0.5


@pytest.mark.parametrize("change", [unfreeze, freeze_normalisation, stay_in_evaluation_mode, clamp, replace_data])
def test_what_a_loop_changes_between_calls(monkeypatch, change):
    """Frozen layers, modes and weights that a loop changes count in the next call, on the host and on the device."""
    results = {}
    for name in ("native", "emulator"):
        monkeypatch.setenv("IGNITE_IPU_BACKEND", name)
        torch.manual_seed(0)
        model = Layers()
        model.first.requires_grad_(False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        x, y = torch.randn(8, 3), torch.randn(8, 2)
        found = results[name] = []
        for step in range(4):
            change(model, step)
            _, loss = ipu_train_batch(model, optimizer, nn.functional.mse_loss, x, target=y)
            modes = [module.training for module in model.modules()]
            model.eval()
            found += [loss.item(), ipu_evaluate_batch(model, x).sum().item(), model.norm.running_mean.sum().item()]
            for module, mode in zip(model.modules(), modes):
                module.training = mode
    assert results["emulator"] == pytest.approx(results["native"], rel=1e-4, abs=1e-5)


def test_an_evaluation_leaves_the_modes(backend):
    """Compiling for evaluation does not let the next step train in evaluation mode."""
    model = Layers()
    ipu_evaluate_batch(model, torch.randn(8, 3))
    assert all(module.training for module in model.modules())


def test_edits_reach_an_evaluation(backend):
    """Averaged weights that are put in for an evaluation, and taken out after it."""
    model = nn.Linear(3, 2)
    x, kept = torch.randn(4, 3), model.weight.data
    before = ipu_evaluate_batch(model, x)
    model.weight.data = torch.zeros(2, 3)
    torch.testing.assert_close(ipu_evaluate_batch(model, x), model.bias.detach().expand(4, 2))
    model.weight.data = kept
    torch.testing.assert_close(ipu_evaluate_batch(model, x), before)


def test_wrappers_for_several_gpus(monkeypatch):
    """Here their calls are the model's, under the wrapper's class and names; in a native run, the wrapper's own."""
    model = nn.Linear(2, 1)
    wrapped = portable.parallel_model(nn.parallel.DistributedDataParallel, model, device_ids=[0])
    assert isinstance(wrapped, nn.parallel.DistributedDataParallel)
    assert list(wrapped.state_dict()) == ["module.weight", "module.bias"]
    x = torch.ones(3, 2)
    assert torch.equal(wrapped(x), model(x))
    monkeypatch.setenv("IGNITE_IPU_BACKEND", "native")
    assert type(portable.parallel_model(nn.DataParallel, model)) is nn.DataParallel


def test_statistics_of_all_processes(monkeypatch):
    """A layer whose statistics are those of all processes is left out where there is one, and refused in several."""
    convert, model = nn.SyncBatchNorm.convert_sync_batchnorm, nn.Sequential(nn.BatchNorm1d(3))
    assert portable.parallel_model(convert, model) is model
    monkeypatch.setattr(portable, "connected", lambda: (0, 2))
    with pytest.raises(ProcessesError, match=r"In 2 processes a device normalises by .* GroupNorm"):
        portable.parallel_model(convert, model)
    monkeypatch.setenv("IGNITE_IPU_BACKEND", "native")
    assert type(portable.parallel_model(convert, model)[0]) is nn.SyncBatchNorm
