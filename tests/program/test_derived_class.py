"""A class derived from a user's is the same each time, and keeps neither that one nor its module's contents alive."""

from __future__ import annotations

import gc
import weakref

from torch import nn

from ignite_ipu import ipu_prepare
from ignite_ipu.program.derived_class import derived_once

SCRIPT = """
import torch
from torch import nn

class Net(nn.Linear):
    def forward(self, x):
        return super().forward(x)

class Optimizer(torch.optim.SGD):
    def __repr__(self):
        return "Optimizer"

model = Net(4, 2)
optimizer = prepare(Optimizer(model.parameters(), lr=0.1), model)
for _ in range(2):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


@derived_once
def derived(base):
    return type(base.__name__, (base,), {})


def test_each_class_has_one():
    class User(nn.Linear):
        pass

    assert derived(User) is derived(User)
    assert derived(User).__mro__[1] is User
    assert derived(nn.Linear).__mro__[1] is nn.Linear


def test_what_a_script_leaves_in_its_module_is_freed():
    """Its classes of a model and of an optimizer were derived from while they trained."""
    module = {"__name__": "script", "prepare": ipu_prepare}
    exec(SCRIPT, module)
    model = weakref.ref(module["model"])
    del module
    gc.collect()
    assert model() is None
