"""Each row of the compatibility table holds, every public name of Ignite has one, and the page shows them."""

from __future__ import annotations

import importlib
from typing import Any, Dict, Set

import pytest
import torch

from tests.ignite import table
from tests.ignite.side import Side, differences

_MODULES = ("ignite.engine", "ignite.handlers", "ignite.metrics", "ignite.metrics.regression")
_MODULES += ("ignite.metrics.clustering", "ignite.metrics.fairness", "ignite.distributed.utils")
_LISTED = {name: importlib.import_module(name) for name in _MODULES[:1]}
_ROWS = table.load()


def public_names() -> Set[str]:
    """Return the names that Ignite's packages export; without a list, their classes and functions."""
    names: Set[str] = set()
    for path in _MODULES:
        try:
            module: Any = importlib.import_module(path)
        except ModuleNotFoundError:
            continue  # a package that came, or went, with another release
        listed = getattr(module, "__all__", None)
        if listed is None:
            listed = [
                name
                for name, value in vars(module).items()
                if callable(value) and not name.startswith("_") and value.__module__.startswith("ignite")
            ]
        names.update(listed)
    common = importlib.import_module("ignite.contrib.engines.common")
    names.update(name for name, value in vars(common).items() if name.startswith(("setup_", "add_", "gen_", "save_")))
    names.update(f"Events.{event}" for event in importlib.import_module("ignite.engine").Events.__members__)
    names.update(vars(importlib.import_module("ignite.distributed")).keys() & {"Parallel", "auto_dataloader"})
    names.update({"auto_model", "auto_optim", "DistributedProxySampler"})
    return names - {"regression", "clustering", "fairness"}


def test_every_public_name_has_a_row():
    """A release with a new handler, metric or event fails here until it has been tried on an IPU."""
    assert sorted(public_names() - {name for entry in _ROWS for name in entry.names}) == []


def test_no_name_has_two_rows():
    names = [name for entry in _ROWS for name in entry.names]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_the_page_shows_the_table():
    assert table.PAGE.read_text(encoding="utf-8") == table.page(), "run python -m tests.ignite.table"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("entry", _ROWS, ids=lambda entry: f"{entry.group}-{entry.script.__name__}")
def test_row(entry, tmp_path):
    """The script gives the same record on an IPU engine as on Ignite's native one."""
    records: Dict[str, Any] = {}
    for kind in ("native", "ipu"):
        side = Side(kind, tmp_path)
        torch.manual_seed(0)
        try:
            records[kind] = entry.script(side)
        finally:
            side.close()
    assert records["native"] is not None, "a script that records nothing proves nothing"
    assert differences(records["native"], records["ipu"], tolerance=entry.tolerance) == []
