"""Importing the package is cheap and quiet, and the names it promises are there."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import ignite_ipu

_OBSERVED_IMPORT = """
import builtins, json, logging, os, signal, sys, threading, warnings
import torch, torch.utils.data, ignite.engine, ignite.handlers

def observe():
    watched = [builtins, os, sys, signal, warnings, logging, torch, torch.nn.Module, torch.Tensor, torch.utils.data,
               torch.utils.data.DataLoader, torch.optim.Optimizer, ignite.engine, ignite.engine.Engine, ignite.handlers]
    # Values by identity: a function that was replaced is another object.
    seen = {f"{owner.__name__}.{name}": id(value) for owner in watched for name, value in list(vars(owner).items())}
    seen["environment"] = dict(os.environ)
    seen["logging"] = [logging.root.level, len(logging.root.handlers)]
    seen["loggers"] = {name: [logger.level, len(logger.handlers)]
                       for name, logger in logging.root.manager.loggerDict.items() if hasattr(logger, "handlers")}
    seen["filters"] = list(map(str, warnings.filters))
    seen["hooks"] = [list(map(str, hooks)) for hooks in (sys.meta_path, sys.path_hooks, sys.path)]
    seen["hooks of modules"] = [len(hooks) for name, hooks in vars(torch.nn.modules.module).items()
                                if name.startswith("_global_") and isinstance(hooks, dict)]
    seen["signals"] = [str(signal.getsignal(number)) for number in signal.valid_signals()]
    seen["threads"] = threading.active_count()
    return seen

observe()
before, modules = observe(), set(sys.modules)
import ignite_ipu
after = observe()
print(json.dumps({
    "changed": sorted(key for key in {*before, *after} if before.get(key) != after.get(key)),
    "imported": sorted(set(sys.modules) - modules),
}))
"""


def test_every_promised_name_is_there_and_listed_once():
    assert len(set(ignite_ipu.__all__)) == len(ignite_ipu.__all__)
    assert set(ignite_ipu.__all__) <= set(dir(ignite_ipu))
    for name in ignite_ipu.__all__:
        assert getattr(ignite_ipu, name) is not None


@pytest.mark.parametrize("package", ["", ".checkpoints", ".handlers", ".pipeline"])
def test_names_come_from_where_the_stub_says(package):
    """Which type checkers read, too."""
    module = import_module(f"ignite_ipu{package}")
    stub = ast.parse(Path(module.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    told = {alias.asname: node for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert set(told) == {*module.__all__} - {"__version__"}
    for name, node in told.items():
        home = import_module(f"{'.' * node.level}{node.module}", module.__name__)
        assert getattr(module, name) is getattr(home, name)


def test_an_unknown_name_is_an_ordinary_attribute_error():
    with pytest.raises(AttributeError, match="module 'ignite_ipu' has no attribute 'create_ipu_trianer'"):
        ignite_ipu.create_ipu_trianer  # noqa: B018


def test_import_changes_nothing_and_loads_no_backend():
    """After torch and ignite, `import ignite_ipu` adds only itself: nothing probed, patched, logged, set or started."""
    run = subprocess.run([sys.executable, "-c", _OBSERVED_IMPORT], stdout=subprocess.PIPE, check=True, text=True)
    observed = json.loads(run.stdout)
    assert observed == {"changed": [], "imported": ["ignite_ipu"]}


def test_import_loads_no_torch():
    """`ignite-ipu --help` answers at once because the front door costs nothing; `parity` leaves it to its processes."""
    front = "import sys, ignite_ipu, ignite_ipu.parity.command, ignite_ipu.parity.report, ignite_ipu.parity.runs"
    code = f"{front}; print({{'torch', 'ignite', 'accelerate', 'poptorch'}} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True, text=True)
    assert run.stdout.strip() == "set()"
