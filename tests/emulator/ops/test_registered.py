"""`torch.ops.poptorch`: PopTorch's operators by the names that it registers them under."""

from __future__ import annotations

import pytest
import torch

import ignite_ipu.emulator as poptorch
from ignite_ipu.emulator.ops.registered import internal_cast_to
from tests.emulator.calls import Calls


def scopes(executor):
    return {
        node.name: node.meta["scope"]
        for node in executor._executable.compiled.capture.graph.nodes
        if "scope" in node.meta
    }


def test_name_scopes_are_pushed_and_popped_by_hooks():
    class Scoped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body = torch.nn.ReLU()
            self.body.register_forward_pre_hook(lambda *_: torch.ops.poptorch.push_name_scope("pushed"))
            self.body.register_forward_hook(lambda *_: torch.ops.poptorch.pop_name_scope())

        def forward(self, x):
            return self.body(x) + 1

    executor = poptorch.inferenceModel(Scoped())
    assert executor(torch.tensor([-1.0])).tolist() == [1]
    found = scopes(executor)
    assert [scope for name, scope in found.items() if "relu" in name] == ["body/pushed"]
    assert [scope for name, scope in found.items() if "add" in name] == [""]
    assert Scoped()(torch.tensor([2.0])).tolist() == [3]  # on the host names have no meaning


def test_casts_are_made_on_the_device_and_not_on_the_host():
    def cast(x):
        half = torch.ops.poptorch.internal_cast(x, "FLOAT16")
        return half, torch.ops.poptorch.internal_cast(half, "FLOAT"), internal_cast_to(x, torch.float16)

    third = torch.tensor([1 / 3])
    half, back, other = poptorch.inferenceModel(Calls(cast))(third)
    assert (half.dtype, back.dtype, other.dtype) == (torch.float16, torch.float32, torch.float16)
    assert torch.equal(back, third.half().float())
    on_host = torch.ops.poptorch.internal_cast(third.half(), "FLOAT16")
    assert on_host.dtype is torch.float32
    assert torch.ops.poptorch.internal_cast(third.half(), "FLOAT").dtype is torch.float16
    with pytest.raises(ValueError, match="'FLOAT' or 'FLOAT16'"):
        torch.ops.poptorch.internal_cast(third, "HALF")
    with pytest.raises(ValueError, match=r"Expecting torch.float or torch.half"):
        internal_cast_to(third, torch.int32)


def test_marks_change_no_value():
    def marked(x):
        torch.ops.poptorch.set_attribute("__outline", "layer", "embedding")
        y = torch.ops.poptorch.nop(torch.ops.poptorch.set_available_memory(x * 2, 0.3))
        torch.ops.poptorch.clear_attribute("__outline", "layer")
        return torch.ops.poptorch.recomputation_checkpoint(y)

    assert poptorch.inferenceModel(Calls(marked))(torch.ones(2)).tolist() == [2, 2]
    assert marked(torch.ones(2)).tolist() == [2, 2]
