"""Training steps compiled as a whole, against the same steps by PyTorch's own operators."""

# ruff: noqa: F401, F811 (fixtures are imported by name)

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ignite_ipu.emulator as poptorch
from ignite_ipu.emulator import optim as ipu
from ignite_ipu.emulator.compiler import inductor
from tests.emulator.compiler.test_inductor import (
    Net,
    Prints,
    X,
    Y,
    assert_same,
    both,
    options,
    switched_on,
    trained,
)

MAKERS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1),
    "nesterov": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True),
    "clipped": lambda params: ipu.SGD(params, lr=0.1, momentum=0.9, weight_decay=0.1, max_grad_norm=0.5),
    "loss scaling": lambda params: ipu.SGD(params, lr=0.1, momentum=0.9, loss_scaling=8.0),
    "combined": lambda params: ipu.SGD(
        params, lr=0.1, momentum=0.9, weight_decay=0.1, use_combined_accum=True, velocity_scaling=4.0
    ),
    "adam": lambda params: torch.optim.Adam(params, lr=0.01, weight_decay=0.1),
    "adamw": lambda params: ipu.AdamW(params, lr=0.01, max_grad_norm=0.1),
    "half moments": lambda params: ipu.Adam(params, lr=0.01, first_order_momentum_accum_type=torch.float16),
    "rmsprop": lambda params: ipu.RMSprop(params, lr=0.01, momentum=0.5, centered=True, weight_decay=0.1),
    "rmsprop of tf": lambda params: ipu.RMSprop(params, lr=0.01, use_tf_variant=True),
    "lamb": lambda params: ipu.LAMB(params, lr=0.01),
}


def falling_rate(step, executor, optimizer):
    for group in optimizer.param_groups:
        group["lr"] *= 0.7
    executor.setOptimizer(optimizer)


@pytest.mark.parametrize("name", MAKERS)
def test_every_optimizer_ends_where_it_does_uncompiled(name, switched_on, monkeypatch):
    """Compiled once, though the learning rate changes and Adam counts on."""
    found, expected = both(monkeypatch, MAKERS[name], options(), between=falling_rate)
    assert len(switched_on) == 1
    # Half moments are rounded: a last bit of float32 can decide which way.
    if name == "half moments":
        for one, two in zip(found, expected):
            torch.testing.assert_close(one, two, rtol=1e-2, atol=1e-3)
    else:
        assert_same(found, expected)


def test_another_loss_scaling_reaches_the_compiled_step(switched_on, monkeypatch):
    def rising(step, executor, optimizer):
        optimizer.loss_scaling *= 2.0
        executor.setOptimizer(optimizer)

    def maker(params):
        optimizer = ipu.SGD(params, lr=0.1, momentum=0.9, loss_scaling=4.0)
        optimizer.variable_attrs.markAsVariable("loss_scaling")
        return optimizer

    found, expected = both(monkeypatch, maker, options(), between=rising)
    assert len(switched_on) == 1
    assert_same(found, expected)


@pytest.mark.parametrize("sizes", [{"accumulation": 4}, {"iterations": 4}, {"replicas": 2, "accumulation": 2}])
def test_micro_batches_accumulate_as_uncompiled(sizes, switched_on, monkeypatch):
    found, expected = both(monkeypatch, MAKERS["adam"], options(**sizes))
    assert len(switched_on) == 1
    assert_same(found, expected)


def test_values_that_forward_writes_over_are_kept_for_the_backward_pass(switched_on, monkeypatch):
    class Overwritten(Net):
        def forward(self, x, labels=None):
            hidden = self.first(x)
            square = hidden * hidden
            hidden.add_(1)
            out = self.last(self.norm(square + hidden))
            return out, F.cross_entropy(out, labels)

    found, expected = both(monkeypatch, MAKERS["adam"], options(), model=Overwritten)
    assert len(switched_on) == 1
    assert_same(found, expected)


def test_groups_have_their_own_numbers(switched_on, monkeypatch):
    def grouped(params):
        first, *rest = params
        return torch.optim.Adam([{"params": [first], "lr": 0.1}, {"params": rest}], lr=0.01)

    assert_same(*both(monkeypatch, grouped, options(), between=falling_rate))


def test_an_update_of_other_operators_compiles_nothing(switched_on, monkeypatch):
    """Weight decay comes and goes."""

    def toggled(step, executor, optimizer):
        optimizer.param_groups[0]["weight_decay"] = 0.1 * (step % 2)
        executor.setOptimizer(optimizer)

    found, expected = both(
        monkeypatch, lambda params: ipu.SGD(params, lr=0.1, weight_decay=0.1), options(), steps=6, between=toggled
    )
    assert len(switched_on) == 1
    assert_same(found, expected)


def test_fresh_optimizer_state_needs_no_new_compilation(switched_on, monkeypatch):
    """Uploading weights sets Adam's moments back; detaching loses everything on the device."""

    def interrupted(step, executor, optimizer):
        if step == 1:
            executor.copyWeightsToHost()
            executor.copyWeightsToDevice()
        if step == 2:
            executor.detachFromDevice()

    found, expected = both(monkeypatch, MAKERS["adam"], options(), steps=5, between=interrupted)
    assert len(switched_on) == 1
    assert_same(found, expected)


def test_the_step_goes_on_as_it_is_until_it_is_compiled(switched_on, monkeypatch):
    """The optimizer's state and the random numbers go on."""
    waiting = []
    monkeypatch.setattr(inductor, "_in_background", waiting.append)

    def ready_after_two_steps(step, executor, optimizer):
        assert len(switched_on) == (step > 1)
        if step == 1:
            waiting.pop()()

    found = trained(MAKERS["adam"], options(accumulation=2), between=ready_after_two_steps)
    monkeypatch.delenv("IGNITE_IPU_EMULATOR_COMPILE")
    assert_same(found, trained(MAKERS["adam"], options(accumulation=2)))


@pytest.mark.parametrize("accumulation", [1, 2])
def test_what_cannot_be_compiled_trains_as_ever(accumulation, switched_on, monkeypatch):
    found, expected = both(monkeypatch, MAKERS["adam"], options(accumulation), model=Prints)
    assert not switched_on
    assert_same(found, expected)


def test_a_compiler_that_fails_leaves_the_step_as_it_was(switched_on, monkeypatch, caplog):
    """The update that was traced has not happened: Adam has not counted it."""

    def fails(module, examples):
        raise RuntimeError("C++ compile error")

    monkeypatch.setattr(inductor, "lowered", fails)
    with caplog.at_level("INFO", logger="poptorch::python"):
        found, expected = both(monkeypatch, MAKERS["adam"], options())
    assert "cannot be compiled: RuntimeError: C++ compile error" in caplog.text
    assert_same(found, expected)


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize(
    ("change", "maker"),
    [
        (lambda o: o.anchorTensor("g", "Gradient___last.weight"), MAKERS["sgd"]),
        (lambda o: o.Training.setAutomaticLossScaling(True), MAKERS["loss scaling"]),
        (lambda o: o, lambda p: ipu.SGD(p, lr=0.1, accum_type=torch.float16)),
    ],
    ids=["anchored", "automatic loss scaling", "accumulated in float16"],
)
def test_settings_that_look_at_gradients_have_them(change, maker, accumulation, switched_on, monkeypatch):
    chosen = options(accumulation)
    change(chosen)
    gradients = []

    def look(step, executor, optimizer):
        gradients.append(executor.getAnchoredTensor("g") if "g" in chosen.anchored_tensors else torch.zeros(1))

    found, expected = both(monkeypatch, maker, chosen, between=look)
    assert len(switched_on) == 1
    assert_same(found, expected)
    assert_same(gradients[:4], gradients[4:])


def test_floating_point_exceptions_keep_their_operators(switched_on):
    chosen = options()
    chosen.Precision.enableFloatingPointExceptions(True)
    trained(MAKERS["sgd"], chosen, steps=1)
    assert not switched_on


def test_a_model_without_a_trainable_weight_runs(switched_on):
    class Frozen(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3).requires_grad_(False)

        def forward(self, x, labels):
            out = self.layer(x)
            return out, nn.functional.cross_entropy(out, labels)

    found = trained(MAKERS["sgd"], options(), model=Frozen, steps=2)
    assert not found[1].requires_grad


def test_a_report_shows_the_operators_of_the_first_run(switched_on, tmp_path):
    """Watched one by one they are not compiled; later runs are."""
    net = nn.Sequential(nn.Linear(4, 3), _Loss())
    executor = poptorch.trainingModel(
        net, poptorch.Options().enableProfiling(str(tmp_path)), torch.optim.SGD(net.parameters(), lr=0.1)
    )
    executor(X)
    assert (tmp_path / "training" / "profile.json").exists()
    assert not switched_on
    executor(X)
    assert len(switched_on) == 1


class _Loss(nn.Module):
    def forward(self, x):
        return poptorch.identity_loss(x, "mean")
