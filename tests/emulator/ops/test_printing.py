"""What `ipu_print_tensor` writes, and when."""

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
    assert capfd.readouterr().err == "x: ((1.0000, 2.0000))\nx: ((3.0000, -4.5000))\n"


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
    for print_gradient, line in ((True, "product_gradient: (5.0000)\n"), (False, "")):
        net = Net(print_gradient)
        model = poptorch.trainingModel(net, options, poptorch.optim.SGD(net.parameters(), lr=1.0))
        model(x)
        assert capfd.readouterr().err == f"product: (6.0000)\n{line}product: (12.0000)\n{line}"
        assert net.weight.item() == 3 - 5 * (2 + 4) / 2
        model.destroy()


def test_constants_print_on_every_call(compiled, capfd):
    """They are not folded away."""
    model = compiled(lambda x: x + poptorch.ipu_print_tensor(torch.ones(1), "one"))
    for _ in range(3):
        model(X)
    assert capfd.readouterr().err.count("one: (1.0000)\n") == 3


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
        (TensorFormat(), torch.tensor(2.5), "2.5000"),
        (TensorFormat(), torch.tensor([1, -2]), "(1, -2)"),
        (TensorFormat(), torch.tensor([True, False]), "(1, 0)"),
        (TensorFormat(), X, "((1.0000, 2.0000),\n (3.0000, -4.5000))"),
        (TensorFormat(), torch.tensor([1e-7, 1.0]), "(1.0000e-07, 1.0000e+00)"),
        (TensorFormat(float_format="fixed", digits=1), torch.tensor([1e-7, 1.0]), "(0.0, 1.0)"),
        (TensorFormat(float_format="scientific", digits=1), torch.tensor([20.0]), "(2.0e+01)"),
        (TensorFormat(float_format="none"), torch.tensor([0.1]), "(0.10000000149011612)"),
        (TensorFormat(), torch.tensor([float("inf"), float("nan")]), "(inf, nan)"),
        (TensorFormat(separator="; ", open_bracket="[", close_bracket="]"), torch.tensor([1, 2]), "[1; 2]"),
        (TensorFormat(max_line_width=10), torch.arange(8), "(0, 1, 2,\n 3, 4, 5,\n 6, 7)"),
        (TensorFormat(summarise_threshold=4, edge_items=1), torch.arange(5), "(0, ..., 4)"),
        (TensorFormat(summarise_threshold=5), torch.arange(5), "(0, 1, 2, 3, 4)"),
        (
            TensorFormat(summarise_threshold=4, edge_items=1),
            torch.arange(9).reshape(3, 3),
            "((0, ..., 2),\n ...,\n (6, ..., 8))",
        ),
    ],
)
def test_formats(style, tensor, text):
    assert style.text(tensor) == text
