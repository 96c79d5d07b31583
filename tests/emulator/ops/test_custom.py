"""Custom operators and the Python functions that stand in for them."""

from __future__ import annotations

from typing import Any, Iterator

import pytest
import torch

import ignite_ipu.emulator as poptorch

X = torch.tensor([1.0, -2.0, 3.0])


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    """Register two operators: a power with an attribute, and one with two results."""

    @poptorch.register_custom_op("Power", "test.ops", 1)
    def power(x: torch.Tensor, exponent: int = 2) -> torch.Tensor:
        return x**exponent

    @poptorch.register_custom_op("MinMax", "test.ops", 1)
    def min_max(x: torch.Tensor) -> Any:
        return x.min(), x.max()

    yield
    poptorch.unregister_custom_op("Power", "test.ops", 1)
    poptorch.unregister_custom_op("MinMax", "test.ops", 1)


def power(x: torch.Tensor, **attributes: Any) -> torch.Tensor:
    return poptorch.custom_op((x,), "Power", "test.ops", 1, example_outputs=(x,), attributes=attributes)[0]


def test_the_stand_in_runs_on_the_device(infer):
    """With the attributes that the call names."""
    assert torch.equal(infer(power, X), X**2)
    assert torch.equal(infer(lambda x: power(x * 2, exponent=3), X), (X * 2) ** 3)
    low, high = infer(lambda x: poptorch.custom_op([x], "MinMax", "test.ops", 1, [x.sum(), x.sum()]), X)
    assert (low.item(), high.item()) == (-2, 3)


def test_attributes_are_those_of_the_trace(compiled):
    """Whatever is written later into a list of them, by the caller or by the stand-in."""

    @poptorch.register_custom_op("Weights", "test.ops", 1)
    def weights(x: torch.Tensor, factors: Any) -> torch.Tensor:
        weighted = x * torch.tensor(factors)
        factors[0] = 100.0
        return weighted

    factors = [1.0, 2.0, 3.0]
    executor = compiled(
        lambda x: poptorch.custom_op([x], "Weights", "test.ops", 1, [x], attributes={"factors": factors})[0]
    )
    try:
        expected = X * torch.tensor([1.0, 2.0, 3.0])
        assert torch.equal(executor(X), expected)
        factors[:] = [0.0, 0.0, 0.0]
        assert torch.equal(executor(X), expected)
        assert {"factors": [1.0, 2.0, 3.0]} in poptorch.attributes_lists
    finally:
        poptorch.unregister_custom_op("Weights", "test.ops", 1)


def gather(data: torch.Tensor, index: torch.Tensor, axis: int = -1) -> torch.Tensor:
    example = torch.zeros_like(index).to(data.dtype)
    return poptorch.custom_op(
        [data, index], "FastGatherLastDim", "poptorch.custom_ops", 1, [example], attributes={"axis": axis}
    )[0]


def test_poptorchs_own_operator_needs_no_library(infer, gradient):
    """Models call the fast gather along the last dimension by its name."""
    data, index = torch.randn(2, 3, 4), torch.tensor([[[3, 0], [1, 1], [2, 0]]] * 2)
    assert torch.equal(infer(gather, data, index), data.gather(-1, index))
    assert torch.equal(infer(lambda d, i: gather(d, i, 2), data, index), data.gather(-1, index))
    with pytest.raises(poptorch.Error, match="FastGatherLastDim gathers along the last dimension"):
        infer(lambda d, i: gather(d, i, 1), data, index)
    row = torch.tensor([2, 0, 2], dtype=torch.int32)
    found = gradient(lambda w: poptorch.identity_loss(gather(w, row.to(w.device)), "sum"), X)
    assert found.tolist() == [1, 0, 2]


def test_gradients_are_the_stand_ins(gradient):
    """The gradient by autograd, or by its own Function."""
    assert torch.equal(gradient(lambda w: poptorch.identity_loss(power(w), "sum"), X), 2 * X)

    class Ten(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return 10 * gradient

    poptorch.register_custom_op("Power", "test.ops", 1)(Ten.apply)
    assert torch.equal(gradient(lambda w: poptorch.identity_loss(power(w), "sum"), X), torch.full((3,), 10.0))


def test_on_the_host_it_gives_zeros():
    (zeros,) = poptorch.custom_op((X,), "Nothing", "test.ops", 1, (X.half(),))
    assert torch.equal(zeros, torch.zeros(3).half())


def test_without_a_stand_in_it_is_refused(infer):
    """The version counts too."""
    for name, version in (("Nothing", 1), ("Power", 2)):
        with pytest.raises(poptorch.Error, match=f"test.ops.{name}:{version}"):
            infer(lambda x, n=name, v=version: poptorch.custom_op((x,), n, "test.ops", v, (x,)), X)


def test_results_must_be_like_the_examples(infer):
    with pytest.raises(poptorch.Error, match="example outputs"):
        infer(lambda x: poptorch.custom_op((x,), "Power", "test.ops", 1, (x.half(),)), X)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({1: 2.0}, r"All attribute keys must be strings\."),
        ({"a": None}, "Attribute values must be"),
        ({"a": [1, 2.0]}, "must all be the same"),
        ({"a": "é"}, "non-ASCII characters"),
        ({"é": 1}, "non-ASCII characters"),
        ({"a": ["ok", "é"]}, "non-ASCII characters"),
    ],
)
def test_attributes(attributes, message):
    with pytest.raises(ValueError, match=message):
        poptorch.custom_op((X,), "Power", "test.ops", 1, (X,), attributes)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (1e39, "is too high for a Popart float"),
        (-1e39, "is too low for a Popart float"),
        (2**63, "is too high for a Popart int"),
        ([-(2**63) - 1], "is too low for a Popart int"),
    ],
)
def test_attributes_out_of_range(value, message, infer):
    """The compiler finds them."""
    with pytest.raises(poptorch.Error, match=message):
        infer(lambda x: power(x, exponent=value), X)


def test_attributes_are_kept_alive():
    """Each distinct dictionary once, for the life of the process."""
    for _ in range(2):
        poptorch.custom_op((X,), "Power", "test.ops", 1, (X,), {"kept": 12345})
    assert poptorch.attributes_lists.count({"kept": 12345}) == 1
