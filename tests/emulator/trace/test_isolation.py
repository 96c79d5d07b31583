"""Contexts of PyTorch's around device calls change nothing that the device computes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from ignite_ipu import emulator as poptorch


class Doubling(TorchFunctionMode):
    """Doubles the results of `linear` and `ones`."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * 2 if func in (nn.functional.linear, torch.ones) else result


class Step(nn.Module):
    """A layer and its loss, with a tensor made in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 3)

    def forward(self, x, y):
        out = self.layer(x) + torch.ones(3, device=x.device)
        return out, nn.functional.mse_loss(out, y)


CONTEXTS = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "a default device": lambda: torch.device("meta"),
    "a function mode": Doubling,
    "hooks that move": torch.autograd.graph.save_on_cpu,
    "hooks that change": lambda: torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: tensor * 0, lambda tensor: tensor
    ),
}


# Earlier versions of PyTorch cannot list the hooks.
LEAVES_HOOKS = hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks")


@pytest.mark.parametrize("name", [name for name in CONTEXTS if LEAVES_HOOKS or not name.startswith("hooks")])
@pytest.mark.parametrize("compiled_before", [False, True])
def test_a_call_computes_what_it_computes_outside(name, compiled_before):
    torch.manual_seed(0)
    step, x, y = Step(), torch.randn(4, 16), torch.randn(4, 3)
    reference = Step()
    reference.load_state_dict(step.state_dict())
    executor = poptorch.trainingModel(step, optimizer=poptorch.optim.SGD(step.parameters(), lr=0.5))
    if compiled_before:
        executor.compile(x, y)
    with CONTEXTS[name]():
        out, loss = executor(x, y)
        trained = step.layer.weight.detach().clone()
    expected, expected_loss = reference(x, y)
    expected_loss.backward()
    torch.testing.assert_close(out, expected.detach())
    torch.testing.assert_close(loss, expected_loss.detach())
    wanted = reference.layer.weight.detach() - 0.5 * reference.layer.weight.grad
    assert trained.dtype is torch.float32
    torch.testing.assert_close(step.layer.weight.detach(), wanted)


def test_a_context_is_back_after_the_call_even_if_that_failed():
    executor = poptorch.inferenceModel(nn.Linear(2, 2))
    with torch.device("meta"), torch.autocast("cpu", dtype=torch.bfloat16):
        with pytest.raises(AssertionError, match="Too many arguments"):
            executor(torch.ones(1, 2, device="cpu"), 1)
        assert torch.ones(2).device.type == "meta"
        assert (torch.ones(2, 2, device="cpu") @ torch.ones(2, 2, device="cpu")).dtype is torch.bfloat16


@pytest.mark.skipif(not LEAVES_HOOKS, reason="this PyTorch cannot tell which hooks there are")
def test_hooks_are_back_after_the_call_in_their_order():
    called = []

    def hooks(name):
        return torch.autograd.graph.saved_tensors_hooks(lambda x: called.append(name) or x.detach(), lambda x: x)

    def save():
        called.clear()
        torch.ones(2, requires_grad=True).exp()
        return list(called)

    executor = poptorch.inferenceModel(nn.Linear(2, 2))
    with hooks("outer"):
        with hooks("inner"):
            executor(torch.ones(1, 2))
            assert save() == ["inner"]
        assert save() == ["outer"]
    assert save() == []


@pytest.mark.skipif(not LEAVES_HOOKS, reason="this PyTorch cannot tell which hooks there are")
def test_hooks_that_forward_sets_are_the_hosts():
    class Saving(Step):
        def forward(self, x, y):
            with torch.autograd.graph.save_on_cpu():
                return super().forward(x, y)

    torch.manual_seed(0)
    step, x, y = Saving(), torch.randn(4, 16), torch.randn(4, 3)
    reference = Step()
    reference.load_state_dict(step.state_dict())
    executor = poptorch.trainingModel(step, optimizer=poptorch.optim.SGD(step.parameters(), lr=0.5))
    executor(x, y)
    reference(x, y)[1].backward()
    wanted = reference.layer.weight.detach() - 0.5 * reference.layer.weight.grad
    torch.testing.assert_close(step.layer.weight.detach(), wanted)


@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning")
def test_a_jit_trace_records_the_model_and_no_copies_of_its_weights():
    """The newest weights are fetched in the middle of it; a device call in it is none of its operators."""
    torch.manual_seed(0)
    step, x, y = Step(), torch.randn(4, 16), torch.randn(4, 3)
    executor = poptorch.trainingModel(step, optimizer=poptorch.optim.SGD(step.parameters(), lr=0.5))
    executor(x, y)
    traced = torch.jit.trace(step.layer, x)
    assert poptorch.counters(executor).weight_downloads == 1
    assert torch.equal(traced(2 * x), nn.functional.linear(2 * x, step.layer.weight, step.layer.bias))

    def calls(x):
        executor(x, y)
        return x + 1

    assert [node.kind() for node in torch.jit.trace(calls, x).graph.nodes()] == ["prim::Constant"] * 2 + ["aten::add"]
    executor.destroy()
