"""Names are resolved however they were imported, by a star, too."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
import types

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
    """The names that a library's star binds are known; the user's own modules are not run to find theirs."""
    assert resolved(imports, name) == full


@pytest.mark.parametrize(
    "module", ["torch.nn", "torch.nn.functional", "torch.optim", "torch.utils.data", "ignite.engine"]
)
def test_stars_bind_what_an_import_binds(module):
    """All but sub-modules, read from the library's text."""
    found = importlib.import_module(module)
    public = [name for name in vars(found) if not name.startswith("_")]
    for name in getattr(found, "__all__", public):
        if not isinstance(getattr(found, name), types.ModuleType):
            assert Names(ast.walk(ast.parse(f"from {module} import *"))).resolve(ast.Name(name)) is not None, name


def test_a_check_imports_no_torch(tmp_path):
    """It reads text: a star's names and the table of operators, too."""
    (tmp_path / "model.py").write_text(
        "from torch.nn import *\nimport torch\n\n\nclass Net(Module):\n"
        "    def forward(self, x):\n        return torch.quantile(x, 0.5).tril()\n"
    )
    code = (
        "import sys\nfrom ignite_ipu.cli import main\n"
        f"main(['check', {str(tmp_path)!r}])\nassert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "quantile" in done.stdout
