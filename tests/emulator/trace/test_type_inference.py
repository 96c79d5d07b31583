"""Shapes that depend on values are refused by name; mistakes of the model stay PyTorch's errors."""

from __future__ import annotations

import os
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ignite_ipu.emulator as poptorch
from ignite_ipu.emulator.trace.type_inference import Inferences, infer
from tests.emulator.calls import Calls

_GROUPS = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 10)
HERE = re.escape(__file__) + r":\d+"


class Groups(nn.Module):
    """Multiplies groups of rows by a matrix each. Without values PyTorch does so in bfloat16 alone."""

    def forward(self, x, weights):
        ends = torch.tensor([1, 3], dtype=torch.int32, device=x.device)
        return torch._grouped_mm(x, weights, offs=ends)


class Pads(nn.Module):
    def __init__(self, **settings):
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 1, **settings)

    def forward(self, x, padding):
        return self.layers(x, src_key_padding_mask=padding)


class Trains(nn.Module):
    def __init__(self, function, weight):
        super().__init__()
        self.function, self.weight = function, nn.Parameter(weight.clone())

    def forward(self, x):
        result = self.function(x @ self.weight)
        return result, poptorch.identity_loss(result, "sum")


class Multiplies(nn.Module):
    def forward(self, x, y):
        return x @ y


@pytest.mark.skipif(not _GROUPS, reason="this PyTorch has no grouped product on a CPU")
def test_an_operator_that_fails_without_values_alone_is_named_with_its_line():
    x, weights = torch.randn(3, 16), torch.randn(2, 16, 16)
    assert Groups()(x, weights).shape == (3, 16)
    with pytest.raises(poptorch.Error, match=rf"Type inference failed for _grouped_mm, called at {HERE}: .*torch\.bmm"):
        poptorch.inferenceModel(Groups())(x, weights)


def test_an_operator_that_pytorch_cannot_infer_is_named_with_its_line():
    """And the way out in the message works."""
    x, padding = torch.randn(2, 5, 8), torch.tensor([[False] * 5, [False] * 4 + [True]])
    with pytest.raises(
        poptorch.Error, match=rf"failed for _nested_tensor\w*, called at {HERE}: .*enable_nested_tensor=False"
    ):
        poptorch.inferenceModel(Pads().eval())(x, padding)
    model = Pads(enable_nested_tensor=False).eval()
    torch.testing.assert_close(poptorch.inferenceModel(model)(x, padding), model(x, padding).detach())


WITHOUT_VALUES = {
    "median": lambda x: x.median(1).values,
    "of all": torch.median,
    "count_nonzero": lambda x: x * torch.count_nonzero(x > 0, 1)[:, None],
    "max_pool3d": lambda x: F.max_pool3d(x.reshape(1, 1, 2, 3, 4), 2, 2),
    "rrelu": lambda x: F.rrelu(x, 0.25, 0.25, training=True),
    "rrelu in place": lambda x: F.rrelu(x * 2, 0.25, 0.25, training=True, inplace=True),
    "nansum": lambda x: x * x.nansum(()).reshape(()) + x.nansum(1, True),
    "repeat_interleave": lambda x: x.repeat_interleave(2, output_size=48),
    "repeat_interleave along": lambda x: torch.repeat_interleave(x, 3, dim=-1, output_size=18),
    "repeat_interleave by name": lambda x: x.repeat_interleave(repeats=2, dim=0, output_size=8),
    "one_hot": lambda x: x * F.one_hot((x[:, 0] > 0).long(), num_classes=6),
}


@pytest.mark.parametrize("name", WITHOUT_VALUES)
def test_results_and_gradients_of_what_an_older_pytorch_cannot_infer(name):
    """It asks the kernels for the host."""
    function = WITHOUT_VALUES[name]
    x, weight = torch.randn(4, 6), torch.randn(6, 6)
    model = Trains(function, weight)
    expected = function(x @ model.weight)
    expected.sum().backward()
    executor = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0))
    found, _ = executor(x)
    torch.testing.assert_close(found, expected.detach())
    torch.testing.assert_close(weight - model.weight.detach(), model.weight.grad, atol=1e-5, rtol=1e-5)


def test_a_code_needs_a_length():
    """Without one its shape depends on the data."""
    with pytest.raises(poptorch.Error, match=r"one_hot: dynamic output shape.*Pass num_classes"):
        poptorch.inferenceModel(Calls(lambda x: F.one_hot(x.long())))(torch.ones(2))


@pytest.mark.parametrize("function", [Multiplies(), poptorch.inferenceModel(Multiplies())])
def test_a_mistake_of_the_model_is_pytorchs_error(function):
    with pytest.raises(RuntimeError, match=r"3.*4.*7.*7|same reduction dim"):
        function(torch.ones(3, 4), torch.ones(7, 7))


INTERRUPTED = """
def relu(x):
    if not calls:
        calls.append(x)
        raise RuntimeError("DataLoader worker (pid 1) is killed by signal: Killed.")
    return x.clamp(min=0)
"""


def test_what_a_signal_handler_raises_in_between_stays_what_it_is():
    """It comes through the code of PyTorch that is running by chance, and says nothing of the operator."""
    names = {"calls": []}
    exec(compile(INTERRUPTED, os.path.join(os.path.dirname(torch.__file__), "_refs", "__init__.py"), "exec"), names)
    with pytest.raises(RuntimeError, match="killed by signal") as caught:
        infer(names["relu"], (torch.ones(2, device="meta"),), {}, set())
    assert not isinstance(caught.value, poptorch.Error)


def looks(tensor):
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad, tensor.is_leaf


@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize(
    ("kernel", "others", "repeats"),
    [
        (F.gelu, (), True),
        (F.layer_norm, ((4,),), True),
        (torch.Tensor.sum, (-1,), True),
        (torch.Tensor.to, (torch.float16,), True),
        (torch.Tensor.to, (torch.float32,), False),  # the tensor itself
        (torch.Tensor.transpose, (0, 1), False),  # a view of it
        (torch.Tensor.expand, (5, 3, 4), False),
        (torch.Tensor.chunk, (2,), False),
        (torch.Tensor.fill_, (0.0,), False),
    ],
)
def test_an_operator_is_inferred_once_for_arguments_of_the_same_look(kernel, others, repeats, needs_grad):
    """Unless it returns or writes to its argument; its result looks as it does by itself, and is writable."""
    inferences = Inferences()
    given = [torch.zeros(4, 3, device="meta", requires_grad=needs_grad).t().clone() for _ in range(3)]
    expected = kernel(given[0].clone(), *others)
    results = [inferences.infer(kernel, (each, *others), {}, set()) for each in given]
    assert bool(inferences._known) == repeats
    for result, other in zip(results, results[1:]):
        assert result is not other
        if repeats:
            assert looks(result) == looks(other) == looks(expected)
            assert result.untyped_storage()._cdata != other.untyped_storage()._cdata
            result.add_(1)


def test_the_kind_and_the_gradient_mode_of_arguments_make_a_difference():
    """1, 1.0 and True are equal, and give other types."""
    inferences, x = Inferences(), torch.zeros(2, dtype=torch.int32, device="meta")
    weight = torch.zeros(2, device="meta", requires_grad=True)
    with_one = [inferences.infer(torch.add, (x, one), {}, set()).dtype for one in (1, 1.0, True)]
    assert with_one == [torch.int32, torch.float32, torch.int32]
    needs_grad = []
    for enabled in (True, False, True):
        with torch.set_grad_enabled(enabled):
            needs_grad.append(inferences.infer(torch.mul, (weight, 2.0), {}, set()).requires_grad)
    assert needs_grad == [True, False, True]
