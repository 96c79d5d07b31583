"""Automatic casting as programs for the older generations ask for it: by model, layer, function, block and policy."""

from __future__ import annotations

import poptorch
import torch
from torch import nn


class Types(nn.Module):
    """A convolution, an activation, a convolution: their results, whose types are looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 1, 3))

    def forward(self, x):
        results = []
        for layer in self.layers:
            x = layer(x)
            results.append(x)
        return results


def run(model, options=None):
    wrapped = poptorch.inferenceModel(model, options)
    results = wrapped(x)
    wrapped.destroy()
    return results


torch.manual_seed(0)
x = torch.randn(1, 1, 8, 8)
half, single = torch.float16, torch.float32

# The whole model.
model = Types()
exact = model(x)[-1].detach()
assert [result.dtype for result in run(model)] == [single] * 3
model.autocast()
results = run(model)
assert [result.dtype for result in results] == [half] * 3
torch.testing.assert_close(results[-1].float(), exact, atol=1e-2, rtol=1e-2)

# Layer by layer; a layer's setting counts for all within.
model = Types()
model.layers.autocast()
model.layers[0].autocast(False)
assert [result.dtype for result in run(model)] == [single, single, half]


# One method, and one block of code.
class Decorated(Types):
    """Casts the operators of one method."""

    @poptorch.autocast(enabled=True)
    def forward(self, x):
        return super().forward(x)


class Within(Types):
    """Casts the second convolution."""

    def forward(self, x):
        first = self.layers[0](x)
        second = self.layers[1](first)
        with poptorch.autocast(enabled=True):
            return [first, second, self.layers[2](second)]


assert [result.dtype for result in run(Decorated())] == [half] * 3
assert [result.dtype for result in run(Within())] == [single, single, half]

# Off for the whole program, whatever the models say.
off = poptorch.Options()
off.Precision.autocastEnabled(False)
assert [result.dtype for result in run(Decorated(), off)] == [single] * 3

# A policy of one's own: which operations run in which type.
fp16 = [nn.Conv2d, torch.relu]
fp32 = [torch.bmm]
policy = poptorch.autocasting.Policy(fp16=fp16, fp32=fp32, promote=[torch.dot], demote=[])
options = poptorch.Options()
options.Precision.autocastPolicy(policy)


class Products(nn.Module):
    """One operation of each set."""

    @poptorch.autocast()
    def forward(self, a, b, v):
        return torch.relu(a), torch.bmm(a, b), torch.dot(v, v.half())


a, b, v = torch.randn(2, 3, 3), torch.randn(2, 3, 3), torch.randn(2)
rectified, product, dot = poptorch.inferenceModel(Products(), options)(a, b, v)
assert (rectified.dtype, product.dtype, dot.dtype) == (half, single, single)
torch.testing.assert_close(product, a @ b)
