"""Values that a model's code names, wherever they are: a change of any is noticed, and of nothing else."""

from __future__ import annotations

import gc
import sys
import textwrap
import types
import weakref
from typing import Any, Dict, Tuple

import pytest
import torch
from torch import nn

from ignite_ipu.program.guards.python_state import PythonState

PROGRAM = """
import argparse, math
import torch
from torch import nn
beta, unused, table, numbers = 1.0, 1.0, {{"beta": 1.0}}, [1.0]
mask = torch.ones(2)
cfg = argparse.Namespace(beta=1.0, other=2.0, inner=argparse.Namespace(beta=1.0))
class CFG:
    beta = 1.0
class Config:
    def __init__(self, beta=1.0):
        self.beta = beta
class Model(nn.Module):
    def __init__(self, config=None):
        super().__init__()
        self.layer, self.config = nn.Linear(2, 2), config
{methods}
model = Model()
{rest}
"""
CONFIGURED = "model = Model(Config())"
CLOSURE = """
def make():
    def scaled(x): return x * factor
    def change():
        nonlocal factor
        factor = 2.0
    factor = 1.0
    return scaled, change
scaled, change = make()
model = Model(scaled)
"""

# Methods of the model, the rest of the program, and a change of forward's result.
NOTICED = {
    "a global": ("def forward(self, x): return x * beta", "", "beta = 2.0"),
    "a global in a lambda": ("def forward(self, x): return (lambda y: y * beta)(x)", "", "beta = 2.0"),
    "a global in a comprehension": ("def forward(self, x): return sum([x * beta for _ in 'ab'])", "", "beta = 2.0"),
    "an attribute of a namespace": ("def forward(self, x): return x * cfg.beta", "", "cfg.beta = 2.0"),
    "one of a namespace in it": ("def forward(self, x): return x * cfg.inner.beta", "", "cfg.inner.beta = 2.0"),
    "another namespace": ("def forward(self, x): return x * cfg.inner.beta", "", "cfg.inner = Config(2.0)"),
    "a class as a namespace": ("def forward(self, x): return x * CFG.beta", "", "CFG.beta = 2.0"),
    "an item of a dictionary whose class computes what it lists": (
        "def forward(self, x): return x * lazy['beta']",
        "class Lazy(dict):\n    def items(self): raise ValueError\n    values = __len__ = items\nlazy = Lazy(beta=1.0)",
        "lazy['beta'] = 2.0",
    ),
    "an item of a dictionary": ("def forward(self, x): return x * table['beta']", "", "table['beta'] = 2.0"),
    "an item of a list": ("def forward(self, x): return x * numbers[0]", "", "numbers[0] = 2.0"),
    "a tensor in place": ("def forward(self, x): return x * mask", "", "mask[0] = 0"),
    "another tensor": ("def forward(self, x): return x * mask", "", "mask = torch.zeros(2)"),
    "a configuration": ("def forward(self, x): return x * self.config.beta", CONFIGURED, "model.config.beta = 2.0"),
    "its replacement": ("def forward(self, x): return x * self.config.beta", CONFIGURED, "model.config = Config(2.0)"),
    "self in a lambda": (
        "def forward(self, x): return (lambda y: y * self.config.beta)(x)",
        CONFIGURED,
        "model.config.beta = 2.0",
    ),
    "an attribute of the class": ("scale = 1.0\ndef forward(self, x): return x * self.scale", "", "Model.scale = 2.0"),
    "a property": (
        "def forward(self, x): return x * self.scale\n@property\ndef scale(self): return cfg.beta",
        "",
        "cfg.beta = 2.0",
    ),
    "a static method": (
        "def forward(self, x): return self.scaled(x)\n@staticmethod\ndef scaled(x): return x * beta",
        "",
        "beta = 2.0",
    ),
    "a helper": ("def forward(self, x): return helper(x)", "def helper(x): return x * beta", "beta = 2.0"),
    "a helper of a helper": (
        "def forward(self, x): return outer(x)",
        "def outer(x): return helper(x)\ndef helper(x): return x * beta",
        "beta = 2.0",
    ),
    "a method of a configuration": (
        "def forward(self, x): return x * self.config.scale()",
        "class Scaled(Config):\n    def scale(self): return self.inner.beta * 2\n"
        "scaled = Scaled()\nscaled.inner = Config()\nmodel = Model(scaled)",
        "scaled.inner.beta = 2.0",
    ),
    "a property of a configuration": (
        "def forward(self, x): return x * self.config.scale",
        "class Scaled(Config):\n    @property\n    def scale(self): return beta\nmodel = Model(Scaled())",
        "beta = 2.0",
    ),
    "a module that is a global": (
        "def forward(self, x): return other(x)",
        "class Other(nn.Module):\n    def forward(self, x): return x * self.scale\n"
        "other = nn.Sequential(Other())\nother[0].scale = 1.0",
        "other[0].scale = 2.0",
    ),
    "another helper": ("def forward(self, x): return helper(x)", "def helper(x): return x", "helper = lambda x: 2 * x"),
    "a function that the model was given": (
        "def forward(self, x): return self.config(x)",
        "model = Model(lambda x: x * beta)",
        "beta = 2.0",
    ),
    "the closure of one": ("def forward(self, x): return self.config(x)", CLOSURE, "change()"),
    "a module that forward imports": (
        "def forward(self, x):\n    import users_settings\n    return x * users_settings.beta",
        "",
        "import users_settings; users_settings.beta = 2.0",
    ),
    "one by another name": (
        "def forward(self, x):\n    import users_settings as c\n    return sum([x * c.inner.beta for _ in 'ab'])",
        "",
        "import users_settings; users_settings.inner.beta = 2.0",
    ),
    "a name of one": (
        "def forward(self, x):\n    from users_settings import inner, beta as b\n    return x * b",
        "",
        "import users_settings; users_settings.beta = 2.0",
    ),
    "an object of one": (
        "def forward(self, x):\n    from users_settings import beta, inner\n    return x * inner.beta",
        "",
        "import users_settings; users_settings.inner.beta = 2.0",
    ),
    "a part of a model": ("def forward(self, x): return x * beta", "model = nn.Sequential(model)", "beta = 2.0"),
}

# And a change of something else.
UNNOTICED = {
    "a global that nothing reads": ("def forward(self, x): return x * beta", "", "unused = 2.0"),
    "the name of an attribute": ("def forward(self, x): return x * cfg.other", "", "other = beta = 2.0"),
    "the name of a local": ("def forward(self, x):\n    unused = 3.0\n    return x * unused", "", "unused = 2.0"),
    "another attribute of a namespace": ("def forward(self, x): return x * cfg.beta", "", "cfg.other = 3.0"),
    "what only __init__ reads": (
        "def __init__(self):\n    super().__init__()\n    self.scale = beta\n"
        "def forward(self, x): return x * self.scale",
        "",
        "beta = 2.0",
    ),
    "the same value again": ("def forward(self, x): return x * beta * cfg.beta", "", "beta = cfg.beta = 1.0"),
    "another name of a module that forward imports": (
        "def forward(self, x):\n    import users_settings\n    return x * users_settings.beta",
        "",
        "import users_settings; users_settings.unused = 2.0",
    ),
    "the text of a name": (
        "def forward(self, x):\n    import users_settings as c\n    return x * ord('c') * len(()) + c.beta",
        "",
        "import users_settings; users_settings.unused = 3.0",
    ),
    "a library's own": ("def forward(self, x): return x * math.pi", "", "math.beta = 1; del math.beta"),
}


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give programs a module of their own to import."""
    module = types.ModuleType("users_settings")
    vars(module).update(beta=1.0, unused=1.0, inner=types.SimpleNamespace(beta=1.0), __file__="users_settings.py")
    monkeypatch.setitem(sys.modules, "users_settings", module)


def run(methods: str, rest: str) -> Dict[str, Any]:
    """Return the globals of a program after it has run."""
    names: Dict[str, Any] = {"__name__": "users_program"}
    text = PROGRAM.format(methods=textwrap.indent(methods, "    "), rest=rest)
    exec(compile(text, "users_program.py", "exec"), names)
    return names


def before_and_after(case: Tuple[str, str, str]) -> Tuple[bool, bool]:
    """Return whether the output of a model has changed, and whether its state reports it."""
    methods, rest, change = case
    names = run(methods, rest)
    x = torch.ones(3, 2)
    state, output = PythonState(names["model"]), names["model"](x)
    values = state.values()
    exec(change, names)
    noticed = not state.complete or bool(state.changed(values))
    return not torch.equal(names["model"](x), output), noticed


@pytest.mark.parametrize("name", NOTICED)
def test_changes_of_what_forward_computes_are_noticed(name):
    assert before_and_after(NOTICED[name]) == (True, True)


@pytest.mark.parametrize("name", UNNOTICED)
def test_other_changes_are_not(name):
    assert before_and_after(UNNOTICED[name]) == (False, False)


def test_relative_imports_are_followed(monkeypatch):
    """Of a package, and nowhere outside of one, where they would fail when they are run."""
    names = run("def forward(self, x):\n    from .settings import beta\n    return x * beta", "")
    monkeypatch.setitem(sys.modules, "users.settings", sys.modules["users_settings"])
    for package, found in (("users", ["users.settings.beta"]), ("", []), (None, [])):
        names["__package__"] = package
        state = PythonState(names["model"])
        values = state.values()
        sys.modules["users_settings"].beta += 1
        assert state.changed(values) == found


def test_names_say_where_values_are():
    forward = "def forward(self, x, by=[1.0]): return x * beta * cfg.inner.beta * self.config.beta * by[0]"
    names = run(forward, CONFIGURED)
    state = PythonState(names["model"])
    values = state.values()
    names["beta"] = names["cfg"].inner.beta = names["model"].config.beta = names["Model"].forward.__defaults__[0][0] = (
        3.0
    )
    assert sorted(state.changed(values)) == [
        "a default argument of forward",
        "beta",
        "cfg.inner.beta",
        "self.config.beta",
    ]


def test_beside_the_model_losses_are_looked_at():
    """Functions, modules and objects with `__call__`."""
    names = run(
        "def forward(self, x): return x",
        "def function(y_pred, y): return (y_pred - y).sum() * beta\n"
        "class Module(nn.Module):\n    margin = 1.0\n    def forward(self, y_pred, y): return y.sum() * self.margin\n"
        "class Callable:\n    def __init__(self): self.scale = 1.0\n"
        "    def __call__(self, y_pred, y): return y.sum() * self.scale * cfg.beta\n"
        "module, called = Module(), Callable()\n",
    )
    state = PythonState(names["model"], names["function"], names["module"], names["called"])
    values = state.values()
    names["beta"] = names["Module"].margin = names["called"].scale = names["cfg"].beta = 2.0
    assert sorted(state.changed(values)) == ["beta", "cfg.beta", "scale", "self.margin"]
    assert not PythonState(names["model"], names["module"]).changed([])
    names["module"].margin = 3.0  # in front of that of its class
    assert not state.complete


def test_classes_are_not_kept():
    def state_of_a_local_class():
        class Local(nn.Module):
            def forward(self, x):
                return x * 2

        model = Local()
        PythonState(model).values()
        return weakref.ref(Local)

    found = state_of_a_local_class()
    gc.collect()
    assert found() is None
