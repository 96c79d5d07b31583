"""Names are resolved however they were imported, by a star, too."""

from __future__ import annotations

import ast

import pytest

from ignite_ipu.migration.analysis.names import Names


def resolved(imports: str, name: str) -> object:
    tree = ast.parse(f"{imports}\n{name}")
    statement = tree.body[-1]
    assert isinstance(statement, ast.Expr)
    return Names(ast.walk(tree)).resolve(statement.value)


@pytest.mark.parametrize(
    ("imports", "name", "full"),
    [
        ("from ignite.engine import *", "create_supervised_trainer", "ignite.engine.create_supervised_trainer"),
        ("from torch.nn import *\nfrom torch.optim import *", "SGD", "torch.optim.SGD"),
        ("from torch.nn import *\nfrom torch.optim import *", "Linear", "torch.nn.Linear"),
        ("from torch.nn import *\nclass Linear: pass", "Linear", None),
        ("from torch.nn import *", "print", "print"),
        ("from torch.nn import *", "Unknown", None),
        ("from somewhere import *", "Linear", None),
        ("from . import *", "Linear", None),
    ],
)
def test_stars(imports, name, full):
    """What a library's star binds is known; the user's own modules are not run to learn what theirs does."""
    assert resolved(imports, name) == full
