"""Loops and branches that run on the device."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import ignite_ipu.emulator as poptorch

X = torch.tensor([1.0, 2.0])


@given(st.integers(0, 6), st.floats(-2, 2), st.floats(-2, 2))
def test_a_loop_equals_pythons(count, factor, offset):
    """The body runs `count` times, each time on its previous result."""

    class Loop(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return poptorch.for_loop(count, lambda a, b: (b, a * factor + offset), [x, y])

    a, b = X.clone(), X + 1
    model = poptorch.inferenceModel(Loop())
    outputs = model(a, b)
    for _ in range(count):
        a, b = b, a * factor + offset
    assert isinstance(outputs, list)
    assert all(torch.allclose(found, expected) for found, expected in zip(outputs, (a, b)))
    model.destroy()


def test_a_body_is_traced_once(infer):
    """Python values in it are those of the trace."""
    calls = []

    def body(x: torch.Tensor) -> torch.Tensor:
        calls.append(None)
        return x + len(calls)

    assert torch.equal(infer(lambda x: poptorch.for_loop(10, body, [x]), X)[0], X + 10)
    assert len(calls) == 1


def test_a_body_reads_tensors_from_outside(infer):
    """They are the same in every iteration; weights, inputs, results and constants alike."""
    layer = nn.Linear(2, 2)

    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            double = x * 2
            constant = torch.tensor([5.0, 6.0])
            moved = torch.tensor([7.0, 8.0], device="cpu")
            return poptorch.for_loop(
                3, lambda y: self.layer(y) + double + x + constant + moved.to(x.device) + torch.ones(2), [x]
            )

    model = poptorch.inferenceModel(Loop())
    expected = X
    with torch.no_grad():
        for _ in range(3):
            expected = layer(expected) + 3 * X + torch.tensor([5.0, 6.0]) + torch.tensor([7.0, 8.0]) + 1
    assert torch.allclose(model(X)[0], expected)
    with torch.no_grad():
        layer.weight.zero_()
    model.copyWeightsToDevice()
    assert torch.allclose(model(X)[0], layer.bias + 3 * X + torch.tensor([13.0, 15.0]))
    model.destroy()


def test_loops_nest(infer):
    """3 times (4 times + 1, then doubled)."""

    def outer(x: torch.Tensor) -> torch.Tensor:
        return poptorch.for_loop(4, lambda y: y + x / x, [x])[0] * 2

    expected = X
    for _ in range(3):
        expected = (expected + 4) * 2
    assert torch.allclose(infer(lambda x: poptorch.for_loop(3, outer, [x]), X)[0], expected)


def test_in_place_work_stays_inside(infer):
    """Loop inputs are copies: neither the model's input nor another loop variable changes with them."""

    def body(a: torch.Tensor, b: torch.Tensor) -> list:
        a.add_(1)
        return [a, a]

    given = X.clone()
    outputs = infer(lambda x: poptorch.for_loop(3, body, [x, x]), given)
    assert torch.equal(given, X)
    assert all(torch.equal(output, X + 3) for output in outputs)


def test_random_numbers_differ_between_iterations(infer):
    """The operator is in the loop, not its value."""

    def body(drawn: torch.Tensor, last: torch.Tensor) -> list:
        return [last, torch.rand(100)]

    one, other = infer(lambda x: poptorch.for_loop(2, body, [x, x]), torch.zeros(100))
    assert not torch.equal(one, other)


def test_modifying_a_tensor_from_outside_is_refused(infer):
    with pytest.raises(poptorch.Error, match="from outside in place"):
        infer(lambda x: poptorch.for_loop(2, lambda y: x.add_(y), [x * 1]), X.clone())


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (lambda x: (x, x), "as many as"),
        (lambda x: x.sum(), "same shape"),
        (lambda x: x.int(), "same type"),
        (lambda x: 3, "must return a tensor"),
    ],
)
def test_a_body_returns_what_it_takes(body, message, infer):
    with pytest.raises(poptorch.Error, match=message):
        infer(lambda x: poptorch.for_loop(2, body, [x]), X)


def test_inputs_are_a_list_of_tensors():
    with pytest.raises(ValueError, match="to be a list of tensors"):
        poptorch.for_loop(5, lambda x: x, (X,))
    with pytest.raises(ValueError, match="input 1"):
        poptorch.for_loop(5, lambda x, y: x, [X, 1])
    with pytest.raises(ValueError, match="to be a list of tensors"):
        poptorch.cond(torch.tensor(True), lambda x: x, [X], lambda x: x, (X,))


def test_on_the_host_a_loop_runs_once(caplog):
    """PopTorch does so too; here it is said."""
    assert torch.equal(poptorch.for_loop(5, lambda x: x + 1, [X])[0], X + 1)
    assert "once outside a wrapped model" in caplog.text


@pytest.mark.parametrize("count", [-1, 2.0])
def test_counts(count, infer):
    with pytest.raises(poptorch.Error, match="0 or more"):
        infer(lambda x: poptorch.for_loop(count, lambda y: y, [x]), X)


def branch(x: torch.Tensor) -> list:
    return poptorch.cond(x.sum() > 0, lambda a: a * 2, [x], lambda a: a - x, [x + 1])


def test_a_branch_is_chosen_at_every_execution(compiled):
    """The same program takes either side."""
    model = compiled(branch)
    assert torch.equal(model(X)[0], X * 2)
    assert torch.equal(model(-X)[0], torch.ones(2))
    assert torch.equal(branch(-X)[0], torch.ones(2))


def test_only_the_chosen_branch_runs(compiled, capfd):
    """Both are traced, one prints."""

    def printing(title: str):
        return lambda x: poptorch.ipu_print_tensor(x, title)

    model = compiled(lambda x: poptorch.cond(x.sum() > 0, printing("yes"), [x], printing("no"), [x]))
    model(X)
    assert capfd.readouterr().err == "yes: (1.000, 2.000)\n"
    model(-X)
    assert capfd.readouterr().err == "no: (-1.000, -2.000)\n"


def test_branches_must_agree(infer):
    with pytest.raises(poptorch.Error, match="same shape"):
        infer(lambda x: poptorch.cond(x.sum() > 0, lambda a: a, [x], lambda a: a.sum(), [x]), X)
    with pytest.raises(poptorch.Error, match="as many as"):
        infer(lambda x: poptorch.cond(x.sum() > 0, lambda a: a, [x], lambda a: (a, a), [x]), X)


@pytest.mark.parametrize("condition", [True, 1, None])
def test_a_condition_is_a_tensor(condition, infer):
    """A Python value chooses while the model is traced, without `cond`."""
    with pytest.raises(poptorch.Error, match="scalar tensor of type bool"):
        infer(lambda x: poptorch.cond(condition, lambda t: t, [x], lambda t: -t, [x])[0], X)


@pytest.mark.parametrize("inputs", ["then_inps", "else_inps"])
def test_a_branch_takes_tensors(inputs, infer):
    """On the host it takes anything, as in PopTorch."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        taken = {"then_inps": [x, x], "else_inps": [x, x]}
        taken[inputs][1] = 2.0
        return poptorch.cond(x.sum() > 0, torch.mul, taken["then_inps"], torch.mul, taken["else_inps"])[0]

    assert torch.equal(forward(X), X * (2.0 if (X.sum() > 0) == (inputs == "then_inps") else X))
    with pytest.raises(poptorch.Error, match=rf"{inputs}\[1\] must be a tensor .* got 2\.0"):
        infer(forward, X)


def test_a_condition_is_a_bool_scalar(infer):
    for condition in (lambda x: x > 0, lambda x: x.sum()):
        with pytest.raises(poptorch.Error, match="scalar tensor of type bool"):
            infer(lambda x, c=condition: poptorch.cond(c(x), lambda a: a, [x], lambda a: a, [x]), X)


@pytest.mark.parametrize(
    "construct",
    [
        lambda w: poptorch.for_loop(2, lambda x: x, [w]),
        lambda w: poptorch.cond(w.sum() > 0, lambda x: x, [w], lambda x: x, [w]),
    ],
)
def test_not_in_training(construct, gradient):
    with pytest.raises(poptorch.Error, match="only supported in inference"):
        gradient(lambda w: poptorch.identity_loss(construct(w)[0], "sum"), X)


def test_operators_of_a_body_are_checked(infer):
    """Operators that the compiler lacks are refused inside a body too."""
    with pytest.raises(poptorch.Error, match="aten::lgamma"):
        infer(lambda x: poptorch.for_loop(2, torch.lgamma, [x]), X)
