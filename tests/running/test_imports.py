"""Scripts of frameworks that are built on PopTorch are PopTorch scripts, and known without importing anything."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Dict

import pytest

from ignite_ipu.running.program import any_built_on_poptorch


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three packages: one built on PopTorch, one in part, and one that only speaks of it."""
    files: Dict[str, str] = {
        "driving/__init__.py": "raise SystemExit('imported')\n",
        "driving/inner/strategy.py": "try:\n    import poptorch\nexcept ImportError:\n    poptorch = None\n",
        "plugins/ipus/models/a.py": "from poptorch.optim import AdamW\n",
        "plugins/cpus/__init__.py": "import poptorchless\n",
        "plugins/cpus/a.py": "import torch\n",
        "speaking.py": "'''Like poptorch.'''\ntext = 'import poptorch'\n",
        "alone.py": "import os\nimport poptorch as pt\n",
    }
    for name, text in files.items():
        path = tmp_path / "packages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    # At the end: the first entry is the script's folder.
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "packages")])
    importlib.invalidate_caches()


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("module", "built_on_it"),
    [
        ("driving", True),
        ("driving.Strategy", True),
        ("driving.inner.strategy", True),
        ("driving.inner.strategy.Strategy", True),
        ("alone", True),
        ("plugins.ipus", True),
        ("plugins.ipus.Trainer", True),
        ("plugins.cpus", False),
        ("plugins.cpus.a", False),
        ("speaking", False),
        ("not_installed", False),
        ("os.path", False),
        ("json", False),
        ("sklearn.datasets.load_digits", False),
        ("torch.nn", False),
        ("ignite_ipu.emulator", False),
    ],
)
def test_what_imports_poptorch_is_built_on_it(module: str, built_on_it: bool) -> None:
    assert any_built_on_poptorch(["json", module]) is built_on_it
    assert "driving" not in sys.modules


@pytest.mark.usefixtures("installed")
def test_a_frameworks_script_runs_as_it_is_with_poptorch_there(run, tmp_path) -> None:
    """Though it names no PopTorch, and its calls would be mapped otherwise."""
    (tmp_path / "packages" / "driving" / "__init__.py").write_text(
        "import poptorch, torch\ndef drive():\n    return poptorch.inferenceModel(torch.nn.Identity())(torch.ones(2))\n"
    )
    try:
        ran = run("from driving import drive; import torch; print(drive().tolist(), torch.cuda.is_available())")
    finally:
        sys.modules.pop("driving", None)
    assert ran.output == ["[1.0, 1.0] False"] and not ran.substitutions
