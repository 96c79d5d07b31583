"""Operators of one's own, called by name with attributes of every type.

A script like this one loads the library in which they are compiled. The test that runs it registers Python functions
for `Cube` and `LeakyRelu` of the domain `custom.ops`, and `Attributes`, which returns how many attributes it got.
"""

from __future__ import annotations

import ctypes
import ctypes.util

import poptorch
import torch

# Any library stands for the compiled operators'.
assert ctypes.cdll.LoadLibrary(ctypes.util.find_library("m") or "libm.so.6")


class Cube(torch.nn.Module):
    """Two outputs, described by examples."""

    def forward(self, x, bias):
        return poptorch.custom_op([x, bias], "Cube", "custom.ops", 1, example_outputs=[x, x])


torch.manual_seed(0)
x, bias = torch.randn(3, 4), torch.randn(3, 4)
cubed, biased = poptorch.inferenceModel(Cube())(x, bias)
torch.testing.assert_close(cubed, x**3)
torch.testing.assert_close(biased, x**3 + bias)
assert not torch.any(torch.stack(Cube()(x, bias)))  # on the CPU there is no such operator


class Leaky(torch.nn.Module):
    """A custom activation after a layer, in training: the operator's own gradient is used."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x):
        (out,) = poptorch.custom_op(
            [self.layer(x)], "LeakyRelu", "custom.ops", 1, example_outputs=[x], attributes={"alpha": 0.02}
        )
        return out, poptorch.identity_loss(out, "sum")


net = Leaky()
weight = net.layer.weight.detach().clone().requires_grad_()
expected = torch.nn.functional.leaky_relu(x @ weight.t() + net.layer.bias.detach(), 0.02)
expected.sum().backward()
model = poptorch.trainingModel(net, optimizer=poptorch.optim.SGD(net.parameters(), lr=0.1))
out, loss = model(x)
torch.testing.assert_close(out, expected.detach())
torch.testing.assert_close(net.layer.weight.detach(), (weight - 0.1 * weight.grad).detach())

attributes = {
    "float_one": 1.5,
    "float_minus_two": -2.0,
    "int_zero": 0,
    "int_five": 5,
    "floats": [1.0, 2.5, -3.0],
    "floats_in_a_tuple": (0.5, 0.25),
    "ints": [4, -2, 0],
    "ints_in_a_tuple": (1, 2, 3),
    "a_string": "a string with quotes and slash \" ' \\ end",
    "strings": ["one", "two"],
    "strings_in_a_tuple": ("three",),
}


class Many(torch.nn.Module):
    """Passes whatever attributes it is made with."""

    def __init__(self, **attributes) -> None:
        super().__init__()
        self.attributes = attributes

    def forward(self, x):
        return poptorch.custom_op([x], "Attributes", "custom.ops", 1, [x], attributes=self.attributes)[0]


assert poptorch.inferenceModel(Many(**attributes))(torch.zeros(2)).tolist() == [len(attributes)] * 2
for wrong in ({"mixed": [1, 2.0]}, {"nothing": None}, {"text": "ü"}):
    try:
        poptorch.inferenceModel(Many(**wrong))(torch.zeros(2))
    except ValueError:
        continue
    raise AssertionError(f"{wrong} was accepted")
