"""A branch in forward is reported when, and only when, a tensor's value decides it."""

from __future__ import annotations

RULE = "data-dependent-control-flow"


def test_if_while_assert_and_conditional_expressions(lines):
    """Every construct that asks for a truth value is seen."""
    code = """
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__(); pass
            def forward(self, x):
                x = torch.relu(x)
                if x.sum() > 0:
                    x = -x
                while x.norm() > 1:
                    x = x / 2
                assert (x >= 0).all()  # passes in a trace
                return x if x.mean() > 0 else -x
    """
    assert lines(RULE, code) == [9, 11, 14]


def test_python_values_decide_freely(lines):
    """Flags, shapes, None, arguments with plain defaults and configuration are known while tracing."""
    code = """
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__(); self.bias = True
            def forward(self, x, mask=None, depth=2, mode='sum'):
                if self.training and x.shape[0] > 1 and x.dim() == 4 and len(x) > 2:
                    x = x * 2
                if mask is not None or depth > 2 or mode == "sum" or not self.bias:
                    x = x + 1
                if isinstance(x, tuple) or x.is_cuda or x.dtype == torch.half:
                    x = x + 2
                return x
    """
    assert lines(RULE, code) == []


def test_what_numbers_a_loop_is_no_tensor(lines):
    """enumerate counts in Python for any argument; the elements of zip are distinguished part by part."""
    code = """
        import torch
        from torch import nn

        class Net(nn.Module):
            def forward(self, x):
                parts = torch.relu(x).chunk(2)
                for i, (part, size) in enumerate(zip(parts, [1, 2])):
                    for _ in range(i + size):
                        x = x + part
                    if i > 0 or part.sum() > 0:
                        x = x + 1
                return x
    """
    assert lines(RULE, code) == [10]


def test_what_torch_says_of_processes_is_known(lines):
    code = """
        import torch.distributed as dist
        from torch import nn

        class Net(nn.Module):
            def forward(self, x):
                if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
                    x = x + 1
                return x
    """
    assert lines(RULE, code) == []


def test_dictionaries_of_tensors(lines):
    """Keys are Python's; an argument of a method of the file, which may be any, shows nothing."""
    code = """
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__(); self.layer = nn.Linear(2, 2)
            def forward(self, batch, mode="loss"):
                if mode == "loss":
                    return self.loss(batch)
                return self.predict(batch)
            def loss(self, batch):
                x, y = self.layer(batch["x"]), batch.get("y")
                if y is not None and "mask" in batch:
                    x = x * batch["mask"]
                for key in sorted(batch):
                    if key != "x" and batch[key].shape[0] > 1:
                        x = x + 1
                if x.sum() > 0:
                    x = -x
                return x
    """
    assert lines(RULE, code) == [18]


def test_values_are_followed_through_methods(lines):
    """A helper called from forward is traced too, with its arguments."""
    code = """
        import torch
        from torch import nn
        class Net(nn.Module):
            def forward(self, x):
                return scaled(self.helper(torch.relu(x), 3))
            def helper(self, y, count):
                if count > 2:
                    y = y + 1
                if y.max() > 1:
                    y = y / y.max()
                return y
        def scaled(z):
            return z if z.sum() > 0 else -z
        def unrelated(z):
            return z if z.sum() > 0 else -z
    """
    assert lines(RULE, code) == [9, 13]


def test_a_loop_as_long_as_a_tensor_says(lines):
    """range(int(tensor)) unrolls by a value, range(tensor.shape[0]) does not."""
    code = """
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__(); pass
            def forward(self, x):
                for _ in range(x.max()):
                    x = x + 1
                for _ in range(x.shape[1]):
                    x = x + 1
                return x
    """
    assert lines(RULE, code) == [8]


def test_what_only_the_host_runs_may_branch(lines):
    """Code behind isRunningOnIpu() follows the device's side."""
    code = """
        import poptorch
        from torch import nn
        class Net(nn.Module):
            def forward(self, x):
                if not poptorch.isRunningOnIpu():
                    if x.sum() > 0:
                        x = -x
                return x.relu()
    """
    assert lines(RULE, code) == []


def test_inherited_forwards_count(lines):
    """A forward is found through a base class of the file."""
    code = """
        from torch import nn
        class Base(nn.Module):
            def forward(self, x):
                return self.head(x.relu())
        class Net(Base):
            def head(self, y):
                return y if y.any() else -y
    """
    assert lines(RULE, code) == [7]


def test_code_outside_models_is_free(lines):
    """Training code branches on losses as it likes."""
    code = """
        import torch
        loss = torch.zeros(())
        if loss > 0:
            print("positive")
    """
    assert lines(RULE, code) == []
