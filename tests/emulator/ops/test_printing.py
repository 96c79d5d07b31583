"""Output of `ipu_print_tensor`, and its time."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ignite_ipu.emulator as poptorch
from ignite_ipu.emulator.ops.printing import TensorFormat

X = torch.tensor([[1.0, 2.0], [3.0, -4.5]])


def test_on_the_host_nothing_is_printed(capfd):
    assert poptorch.ipu_print_tensor(X, "x") is X
    assert capfd.readouterr().err == ""


def test_every_micro_batch_prints(infer, capfd):
    """Once for each device iteration, and not when the model compiles."""
    options = poptorch.Options().deviceIterations(2)
    output = infer(lambda x: poptorch.ipu_print_tensor(x, "x") * 2, X, options=options)
    assert torch.equal(output, X * 2)
    assert capfd.readouterr().err == "x: (\n (1.000, 2.000)\n)\nx: (\n (3.000, -4.500)\n)\n"


def test_gradients_print_in_training(capfd):
    """Under a title of their own, unscaled by accumulation; never when switched off."""

    class Net(nn.Module):
        def __init__(self, print_gradient: bool) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.tensor([3.0]))
            self.print_gradient = print_gradient

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            product = poptorch.ipu_print_tensor(self.weight * x, "product", self.print_gradient)
            return poptorch.identity_loss(product * 5, "sum")

    x = torch.tensor([2.0, 4.0])
    options = poptorch.Options()
    options.Training.gradientAccumulation(2)
    for print_gradient, line in ((True, "product_gradient: (5.000)\n"), (False, "")):
        net = Net(print_gradient)
        model = poptorch.trainingModel(net, options, poptorch.optim.SGD(net.parameters(), lr=1.0))
        model(x)
        assert capfd.readouterr().err == f"product: (6.000)\n{line}product: (12.00)\n{line}"
        assert net.weight.item() == 3 - 5 * (2 + 4) / 2
        model.destroy()


def test_constants_print_on_every_call(compiled, capfd):
    """They are not folded away."""
    model = compiled(lambda x: x + poptorch.ipu_print_tensor(torch.ones(1), "one"))
    for _ in range(3):
        model(X)
    assert capfd.readouterr().err.count("one: (1.000)\n") == 3


def test_without_a_title_the_tensors_name_is_used(infer, capfd):
    infer(lambda x: poptorch.ipu_print_tensor(torch.relu(x)), X)
    assert capfd.readouterr().err.startswith("relu: ")


def test_unused_results_do_not_print(infer, capfd):
    """As on the device, where the operator may be removed."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        poptorch.ipu_print_tensor(x, "lost")
        return x * 2

    infer(forward, X)
    assert capfd.readouterr().err == ""


def test_arguments_are_checked():
    with pytest.raises(poptorch.Error, match=r"must take a torch\.tensor argument"):
        poptorch.ipu_print_tensor(3)
    with pytest.raises(KeyError, match="float format"):
        poptorch.ipu_print_tensor(X, float_format="octal")


@pytest.mark.parametrize(
    ("style", "tensor", "text"),
    [
        (TensorFormat(), torch.tensor(2.5), "2.500"),
        (TensorFormat(), torch.tensor([1, -2]), "(1, -2)"),
        (TensorFormat(), torch.tensor([True, False]), "(1, 0)"),
        (TensorFormat(), X, "(\n (1.000, 2.000)\n (3.000, -4.500)\n)"),
        (TensorFormat(), torch.tensor([1e-7, 1.0]), "(1.000e-07, 1.000e+00)"),
        (TensorFormat(float_format="fixed", digits=1), torch.tensor([1e-7, 1.0]), "(0, 1)"),
        (TensorFormat(float_format="scientific", digits=1), torch.tensor([20.0]), "(2e+01)"),
        (TensorFormat(float_format="none"), torch.tensor([0.1]), "(0.10000000149011612)"),
        (TensorFormat(), torch.tensor([float("inf"), float("nan")]), "(inf, nan)"),
        (TensorFormat(separator="; ", open_bracket="[", close_bracket="]"), torch.tensor([1, 2]), "[1; 2]"),
        (TensorFormat(max_line_width=10), torch.arange(8), "(0, 1, 2, \n  3, 4, 5, \n  6, 7)"),
        (TensorFormat(summarise_threshold=4, edge_items=1), torch.arange(5), "(0, ..., 4)"),
        (TensorFormat(summarise_threshold=5), torch.arange(5), "(0, 1, 2, 3, 4)"),
        (
            TensorFormat(summarise_threshold=4, edge_items=1),
            torch.arange(9).reshape(3, 3),
            "(\n (0, ..., 2)\n ...\n (6, ..., 8)\n)",
        ),
    ],
)
def test_formats(style, tensor, text):
    assert style.text(tensor) == text


def test_digits_are_significant():
    """Those before the point of the largest element are no longer there for the fraction."""
    e = torch.tensor([2.718281828])
    assert TensorFormat(digits=8).text(e) == "(2.7182817)"
    assert TensorFormat(digits=8, float_format="scientific").text(e) == "(2.7182817e+00)"
    assert TensorFormat(digits=6).text(torch.tensor([123.456, 1.0])) == "(123.456, 1.000)"
    assert TensorFormat(digits=2).text(torch.tensor([123.456, 1.0])) == "(123, 1)"


def test_the_layout(infer, capfd):
    """An outer bracket ends its line or has one of its own; rows have a line each, and nothing between them."""
    x = torch.tensor([[1.25, 2.7182818], [3.1415927, 1.4142135]])
    style = {"digits": 8, "separator": " ", "open_bracket": "{", "close_bracket": "}"}
    infer(lambda x: poptorch.ipu_print_tensor(x, "title", **style) + 1, x)
    assert capfd.readouterr().err == "title: {\n {1.2500000 2.7182817}\n {3.1415927 1.4142135}\n}\n"
    cube = torch.arange(8).reshape(2, 2, 2)
    text = "{\n {\n  {0 1}\n  {2 3}\n }\n {\n  {4 5}\n  {6 7}\n }\n}"
    assert TensorFormat(**style).text(cube) == text


def test_a_long_row_is_broken_after_a_separator():
    """The next rows are indented by two more columns, and the separator is as it was given."""
    style = TensorFormat(max_line_width=10, separator=";")
    assert style.text(torch.arange(10, 16).reshape(1, 6)) == "(\n (10;11;\n   12;13;\n   14;15)\n)"
