"""`inferenceModel`: float and half precision, `isRunningOnIpu`, and weights loaded into the wrapper."""

from __future__ import annotations

import copy

import poptorch
import torch


class Network(torch.nn.Module):
    """Two layers, and a record of where it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = torch.nn.Linear(6, 4), torch.nn.Linear(4, 3)

    def forward(self, x, y):
        if poptorch.isRunningOnIpu():
            x = x + y
        else:
            x = torch.add(x, y)
            assert x.device.type == "cpu"
        return self.two(torch.relu(self.one(x)))


torch.manual_seed(0)
native = Network().eval()
assert not poptorch.isRunningOnIpu()
model = poptorch.inferenceModel(native)
assert not model.isCompiled() and not model.isAttachedToDevice()
x, y = torch.randn(5, 6), torch.randn(5, 6)
torch.testing.assert_close(model(x, y), native(x, y).detach())
assert model.isCompiled() and model.isAttachedToDevice()
torch.testing.assert_close(model(y=y, x=x), native(x, y).detach())

# Compiled once, for these shapes.
try:
    model(x[:3], y[:3])
except poptorch.Error as error:
    assert "Shape mismatch for x" in str(error)
else:
    raise AssertionError("another batch size was accepted")
model.destroy()
torch.testing.assert_close(model(x[:3], y[:3]), native(x[:3], y[:3]).detach())

# Weights that are loaded into the wrapper reach the device.
other = Network()
model.load_state_dict(other.state_dict())
torch.testing.assert_close(model(x[:3], y[:3]), other(x[:3], y[:3]).detach())

# Many iterations on the device: the batch is cut into that many.
ten = poptorch.inferenceModel(native, poptorch.Options().deviceIterations(5))
torch.testing.assert_close(ten(x, y), native(x, y).detach())

# Half precision, three ways: everything; activations alone; some layers.
exact = native(x, y).detach()
everything = poptorch.inferenceModel(copy.deepcopy(native).half())(x.half(), y.half())
activations = poptorch.inferenceModel(native)(x.half(), y.half())
mixed = copy.deepcopy(native)
mixed.two.half()
some = poptorch.inferenceModel(mixed)(x, y)
assert everything.dtype == activations.dtype == torch.float16 and some.dtype == torch.float32
for result in (everything, activations, some):
    torch.testing.assert_close(result.float(), exact, atol=2e-2, rtol=2e-2)

# Element by element, half and float give float, as in PyTorch.
product = poptorch.inferenceModel(torch.nn.PReLU())(torch.ones(2, 3, dtype=torch.int32).float())
assert product.dtype == torch.float32


class Scale(torch.nn.Module):
    """A float parameter on the input's type."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor([2.0, 3.0, 4.0]))

    def forward(self, x):
        return x * self.factor


assert poptorch.inferenceModel(Scale())(torch.ones(2, 3).half()).dtype == torch.float32
casting = poptorch.Options()
casting.Precision.halfFloatCasting(poptorch.HalfFloatCastingBehavior.HalfUpcastToFloat)
casting.Precision.runningStatisticsAlwaysFloat(True)
assert poptorch.inferenceModel(Scale(), casting)(torch.ones(2, 3).half()).tolist() == [[2, 3, 4], [2, 3, 4]]
