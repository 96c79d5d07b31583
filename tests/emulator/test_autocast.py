"""Autocasting, the older generation's API, seen in the types of the values in a traced model."""

from __future__ import annotations

import functools
from typing import Any, Callable, Iterator, List, Optional

import pytest
import torch
from torch import nn

import ignite_ipu.emulator as poptorch
from ignite_ipu.emulator import autocast
from ignite_ipu.emulator.trace import autocasting
from ignite_ipu.emulator.trace.autocasting import Policy
from tests.emulator.calls import Calls
from tests.half_precision import needs_half_precision

X = torch.randn(2, 3, 8)
in_half = functools.partial(pytest.param, marks=needs_half_precision)


class Net(nn.Module):
    """A convolution, an activation and a second convolution, whose types it returns."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.relu, self.second = nn.Conv1d(3, 4, 3), nn.ReLU(), nn.Conv1d(4, 2, 3)

    def forward(self, x: torch.Tensor) -> List[torch.Tensor]:
        one = self.first(x)
        two = self.relu(one)
        return [one, two, self.second(two)]


def run(model: nn.Module, *inputs: torch.Tensor, options: Optional[poptorch.Options] = None) -> Any:
    executor = poptorch.inferenceModel(model, options)
    try:
        return executor(*inputs)
    finally:
        executor.destroy()


def types(outputs: List[torch.Tensor]) -> str:
    return " ".join({torch.float16: "half", torch.float32: "float"}[output.dtype] for output in outputs)


def test_a_model_is_not_cast_unless_asked():
    assert types(run(Net(), X)) == "float float float"


@needs_half_precision
def test_model_level():
    """Convolutions run in half; the values are those of a half model."""
    net = Net()
    expected = [output.float() for output in Net.forward(net, X)]
    net.autocast()
    outputs = run(net, X)
    assert types(outputs) == "half half half"
    assert all(torch.allclose(o.float(), e, atol=5e-3) for o, e in zip(outputs, expected))
    net.autocast(False)
    assert types(run(net, X)) == "float float float"


@needs_half_precision
def test_layer_level_is_hierarchical():
    """The innermost setting counts, for the layer and for all layers in it."""
    net = nn.Sequential(Net())
    net.autocast()
    net[0].second.autocast(False)
    one, two, three = run(net, X)[:3]
    assert types([one, two]) == "half half"
    assert three.dtype is torch.float16  # a convolution follows its activation
    net[0].autocast(False)
    net[0].first.autocast(True)
    assert types(run(net, X)) == "half half half"
    net[0].first.autocast(False)
    assert types(run(net, X)) == "float float float"


@needs_half_precision
def test_a_layer_called_past_its_parent_is_cast_too():
    """With any caller, a layer belongs to the module that was marked."""

    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = Net()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return [self.parts.first(x)]

    model = Parts()
    model.parts.autocast()
    assert types(run(model, X)) == "half"


@needs_half_precision
def test_a_layer_that_is_not_cast_computes_in_the_types_it_gets():
    """An excluded linear layer after a half one gets half; without autocast products of both types would fail."""
    a, b = torch.randn(2, 4), torch.randn(4, 3)

    def forward(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        with autocast():
            inside = a @ b
            with autocast(enabled=False):
                outside = a @ b
        return [inside, outside, a @ b]

    assert types(run(Calls(forward), a, b.repeat(1, 1))) == "half float float"


@needs_half_precision
def test_decorator():
    """It holds for the function's body, wherever it is called."""

    class Decorated(Net):
        @autocast(enabled=True)
        def forward(self, x: torch.Tensor) -> List[torch.Tensor]:
            return super().forward(x)

    class Excluded(Net):
        @autocast(enabled=False)
        def forward(self, x: torch.Tensor) -> List[torch.Tensor]:
            return super().forward(x)

    assert types(run(Decorated(), X)) == "half half half"
    outer = nn.Sequential(Excluded())
    outer.autocast()
    assert types(run(outer, X)) == "float float float"
    assert Decorated()(X)[0].dtype is torch.float32, "on the host nothing is cast"


def test_the_options_switch_everything_off():
    net = Net()
    net.autocast()
    options = poptorch.Options()
    options.Precision.autocastEnabled(False)
    assert types(run(net, X, options=options)) == "float float float"


def cast(policy: Optional[Policy], function: Callable[..., Any], *inputs: torch.Tensor) -> torch.dtype:
    options = poptorch.Options()
    if policy is not None:
        options.Precision.autocastPolicy(policy)
    model = Calls(function)
    model.autocast()
    return run(model, *inputs, options=options).dtype


SQUARE = torch.randn(2, 2)


@pytest.mark.parametrize(
    ("function", "types", "expected"),
    [
        in_half(torch.matmul, (torch.float32, torch.float32), torch.float16),
        in_half(torch.mm, (torch.float16, torch.float32), torch.float16),
        (lambda a, b: torch.softmax(a, 1), (torch.float16, torch.float16), torch.float32),
        (lambda a, b: torch.exp(a), (torch.float16, torch.float16), torch.float32),
        in_half(lambda a, b: torch.relu(a), (torch.float16, torch.float16), torch.float16),
        (lambda a, b: torch.cat([a, b]), (torch.float16, torch.float32), torch.float32),
        (lambda a, b: torch.stack([a, b]), (torch.float16, torch.float16), torch.float16),
        (lambda a, b: a + b, (torch.float16, torch.float16), torch.float16),
        (lambda a, b: a + b, (torch.float16, torch.float32), torch.float32),
    ],
)
def test_default_policy(function, types, expected):
    assert cast(None, function, *(SQUARE.to(dtype) for dtype in types)) is expected


@pytest.mark.parametrize(
    ("policy", "function", "types", "expected"),
    [
        in_half(Policy(fp16=[torch.relu]), torch.relu, (torch.float32,), torch.float16),
        (Policy(fp32=[torch.matmul]), torch.matmul, (torch.float16, torch.float16), torch.float32),
        (Policy(fp32=["matmul"]), torch.matmul, (torch.float16, torch.float16), torch.float32),
        (Policy(promote=[torch.matmul]), torch.matmul, (torch.float16, torch.float32), torch.float32),
        in_half(Policy(promote=[torch.matmul]), torch.matmul, (torch.float16, torch.float16), torch.float16),
        in_half(Policy(demote=[torch.matmul]), torch.matmul, (torch.float16, torch.float32), torch.float16),
        (Policy(demote=[torch.matmul]), torch.matmul, (torch.float32, torch.float32), torch.float32),
        (Policy(demote=[torch.add]), lambda a, b: a + b, (torch.float16, torch.float32), torch.float16),
        in_half(Policy(fp16=[nn.Softmax]), lambda a: nn.Softmax(1)(a), (torch.float32,), torch.float16),
        (Policy(fp16=[]), torch.matmul, (torch.float32, torch.float32), torch.float32),
    ],
)
def test_custom_policies(policy, function, types, expected):
    """A list replaces its default, and takes its operations from the defaults of the others."""
    assert cast(policy, function, *(SQUARE.to(dtype) for dtype in types)) is expected


def test_integers_are_never_cast():
    assert cast(Policy(fp16=["add"]), lambda a: (a + 1).int() + torch.ones(2, 2).int(), SQUARE) is torch.int32


@needs_half_precision
def test_gradients_reach_float_weights():
    """Training through half products updates the float weights."""

    class Trained(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 1, bias=False)

        def forward(self, x: torch.Tensor) -> Any:
            out = self.linear(x)
            return out, poptorch.identity_loss(out.float(), "sum")

    net = Trained()
    net.autocast()
    before = net.linear.weight.detach().clone()
    executor = poptorch.trainingModel(net, optimizer=poptorch.optim.SGD(net.parameters(), lr=1.0))
    out, _ = executor(torch.ones(1, 4))
    assert out.dtype is torch.float16 and net.linear.weight.dtype is torch.float32
    assert torch.allclose(before - net.linear.weight.detach(), torch.ones(1, 4))
    executor.destroy()


def test_policies_compare_by_what_they_say():
    assert Policy() == Policy() and Policy(fp16=[torch.relu]) == Policy(fp16=["relu"])
    assert Policy() != Policy(fp16=[]) and hash(Policy()) == hash(Policy())
    assert "relu" in repr(Policy(fp32=[torch.relu]))


def test_values_are_checked():
    with pytest.raises(ValueError, match="enabled=True or enabled=False"):
        autocast(1)
    with pytest.raises(ValueError, match="enabled=True or enabled=False"):
        nn.ReLU().autocast("yes")
    with pytest.raises(ValueError, match="functions of PyTorch, their names and module classes"):
        Policy(fp16=[3])
    with pytest.raises(ValueError, match="Policy"):
        poptorch.Options().Precision.autocastPolicy("fp16")
    with pytest.raises(ValueError, match="bool"):
        poptorch.Options().Precision.autocastEnabled(1)


@pytest.fixture(autouse=True)
def _hooks_are_removed() -> Iterator[None]:
    """No trace leaves a hook on all modules behind."""
    yield
    assert not torch.nn.modules.module._global_forward_pre_hooks
    assert not torch.nn.modules.module._global_forward_hooks


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("poptorch.autocast", lambda: autocast()),
        ("poptorch.autocasting.Policy", lambda: Policy(fp16=[torch.bmm])),
        ("Module.autocast", lambda: nn.Linear(1, 1).autocast()),
        ("Options.Precision.autocastEnabled", lambda: poptorch.Options().Precision.autocastEnabled(True)),
        ("Options.Precision.autocastPolicy", lambda: poptorch.Options().Precision.autocastPolicy(Policy())),
    ],
)
def test_a_name_that_the_present_generation_lacks_is_warned_of_once(name, use, caplog):
    """The same program would not run with PopTorch 3.3."""
    autocasting.warn_of_age.cache_clear()
    use()
    use()
    assert caplog.text.count(f"{name} is no part of PopTorch 3.3, where using it is an AttributeError") == 1


def test_modules_can_be_marked_right_after_the_import(processes):
    """A program's first use of PopTorch may be `model.autocast()`, before any name of the package."""
    program = "import ignite_ipu.emulator as poptorch; import torch; torch.nn.Linear(1, 1).autocast(); print('marked')"
    assert processes.run(["-c", program], check=True).stdout == "marked\n"
