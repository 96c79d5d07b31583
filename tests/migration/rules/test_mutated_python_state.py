"""Python state changed in forward is reported; buffers changed in place are not."""

from __future__ import annotations

import pytest

from ignite_ipu.migration.findings import Outcome

RULE = "mutated-python-state"


def test_counters_lists_and_globals(lines):
    """Attributes, containers and globals are all left behind by the trace."""
    code = """
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__(); pass
            def forward(self, x):
                global calls
                calls = 1
                self.count += 1
                self.history.append(x.mean())
                self.cache["x"] = x
                return x
    """
    assert lines(RULE, code) == [9, 10, 11, 12]


def test_buffers_and_local_values_are_fine(lines):
    """A buffer changed in place is the device's; a local list is a Python value of this trace."""
    code = """
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__(); self.register_buffer("steps", torch.zeros(()))
            def forward(self, x):
                self.steps += 1
                parts = []
                parts.append(x)
                return torch.cat(parts)
    """
    assert lines(RULE, code) == []


def test_what_comes_to_the_same_in_every_call_is_borne_by_run(findings):
    """Shapes, values that are made once if they are missing or do not fit, and tensors for other code to read.

    Not values that are computed from previous ones.
    """
    code = """
        from torch import nn

        class Net(nn.Module):
            def forward(self, x):
                self.shape = x.shape
                if self.config.kind is None:
                    self.config.kind = choose(x)
                if not hasattr(self, "size") or self.size != len(x):
                    self.size = measure(x)
                if self.mask is None or self.mask.shape[0] != x.shape[0]:
                    self.mask, self.bias = torch.ones(len(x)), make(x)
                setattr(self, "rows", x.shape[0])
                self.calls = self.calls + 1
                self.features = x.relu()
                self.time = now()
                return x
    """
    assert [found.run.value for found in findings(RULE, code)] == [
        *["handled"] * 6,
        *("function by function", "handled", "function by function"),
    ]


def test_only_what_forward_reaches(lines):
    """A method that forward never calls may change anything."""
    code = """
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__(); pass
            def forward(self, x):
                return x
            def reset(self):
                self.count = 0
    """
    assert lines(RULE, code) == []


def test_a_tensor_kept_beside_a_result(findings):
    """No other code of the model reads it, so it is as one that is assigned alone."""
    code = """
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__(); self.attn = None
            def forward(self, x):
                x, self.attn = torch.max(x, dim=1)
                return x
    """
    assert [each.run.value for each in findings(RULE, code)] == ["handled"]


def test_a_converted_table_is_the_same_in_every_call(findings):
    """A conversion of the attribute itself changes it once at most; arithmetic does in each call."""
    code = """
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.table = torch.zeros(4)
                self.scale = torch.ones(4)
                self.register_buffer("flag", torch.zeros(1))
            def forward(self, x):
                self.table = self.table.to(self.flag)
                self.table = self.table.to(x.device).type_as(x)
                self.scale = self.scale.to(x) * 2
                return x + self.table * self.scale
    """
    found = [(each.line, each.run.name) for each in findings(RULE, code)]
    assert found == [(11, "HANDLED"), (12, "HANDLED"), (13, "BY_FUNCTION")]


DECODER = """
    import torch
    from torch import nn

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.out, self.h = nn.LSTMCell(4, 7), nn.Linear(7, 4), None
        def start(self, memory):
            z = lambda n: torch.zeros(memory.size(0), n)
            {start}
        def step(self, x):
            {step}
            return self.out(self.h)
        def forward(self, memory):
            {first}
            frames = []
            for t in range(memory.size(1)):
                frames.append(self.step(memory[:, t]))
            return torch.stack(frames, 1)
"""
STEP = "self.h, self.c = self.cell(x, (self.h, self.c))"
START = "self.h, self.c = z(7), z(7)"


@pytest.mark.parametrize(
    ("start", "step"),
    [
        (START, STEP),
        (START, f"{STEP}; self.h = self.h.relu(); self.c *= 2"),
        ("self.state = (z(7), z(7)); self.h = z(7)", "self.state = self.cell(x, self.state); self.h = self.state[0]"),
        (f"{START}; self.seen, self.t = [], 0", f"{STEP}; self.seen.append(self.h); self.t += 1"),
    ],
)
def test_attributes_that_each_call_sets_anew(start, step, findings):
    """They are as variables of the call: states of a decoder, also in methods that forward calls."""
    found = findings(RULE, DECODER.format(start=start, step=step, first="self.start(memory)"))
    assert {each.run for each in found} == {Outcome.HANDLED}


@pytest.mark.parametrize(
    "first",
    ["pass", "if len(memory) > 4: self.start(memory)", "y = self.step(memory[:, 0]); self.start(memory)"],
)
def test_attributes_that_a_call_may_have_from_the_one_before(first, findings):
    found = findings(RULE, DECODER.format(start=START, step=STEP, first=first))
    assert Outcome.BY_FUNCTION in {each.run for each in found}
