"""Types at the seam to PopTorch have members of its API table alone, or of bases of its classes."""

from __future__ import annotations

import enum
import json
from pathlib import Path
from types import FunctionType, ModuleType

import pytest
import torch
from torch.utils.data import DataLoader

from ignite_ipu import poptorch_types

NAMES = {
    entry["name"]
    for entry in json.loads((Path(__file__).parent / "emulator/data/api.json").read_text(encoding="utf-8"))["entries"]
}
# By type, the name in the table, and the class outside PopTorch that gives it further members.
TYPES = {
    "PopTorch": ("poptorch", ModuleType),
    "Options": ("poptorch.Options", object),
    "TrainingOptions": ("poptorch.options._TrainingOptions", object),
    "DistributedOptions": ("poptorch.options._DistributedOptions", object),
    "TensorLocationOptions": ("poptorch.options._TensorLocationOptions", object),
    "PopartOptions": ("poptorch.options._PopartOptions", object),
    "TensorLocationSettings": ("poptorch.TensorLocationSettings", object),
    "Executor": ("poptorch.PoplarExecutor", object),
    "DataLoader": ("poptorch.DataLoader", DataLoader),
    "Optimizers": ("poptorch.optim", object),
    "DeviceOptimizer": ("poptorch.optim.SGD", torch.optim.SGD([torch.zeros(1)], 0.1)),
    "VariableAttributes": ("poptorch.optim.VariableAttributes", object),
    "Blocks": ("poptorch.Block", object),
    "OutputModes": ("poptorch.OutputMode", enum.EnumMeta),
    "DataLoaderModes": ("poptorch.DataLoaderMode", enum.EnumMeta),
    "ReductionTypes": ("poptorch.ReductionType", enum.EnumMeta),
    "ConnectionTypes": ("poptorch.ConnectionType", enum.EnumMeta),
}
BASES = {"Enumeration"}
MODULE = {"__version__", "__file__"}


def members(protocol: type) -> set:
    """Return the names that a protocol and those it extends declare."""
    found = set()
    for each in protocol.__mro__:
        if each.__module__ == poptorch_types.__name__:
            found |= {name for name, value in vars(each).items() if isinstance(value, (FunctionType, property))}
            found |= set(vars(each).get("__annotations__", {}))
    return {name for name in found if name not in ("__init__", "__subclasshook__", "_no_init_or_replace_init")}


def test_each_type_has_its_name_in_the_table():
    """A type that is added gets a row here."""
    declared = {name for name, each in vars(poptorch_types).items() if getattr(each, "_is_protocol", False)}
    assert {name for name in declared if not name.startswith("_")} - BASES - {"Protocol"} == set(TYPES)


@pytest.mark.parametrize("name", TYPES)
def test_members_are_poptorchs(name):
    """So that type checkers refuse names that PopTorch 3.3 lacks."""
    prefix, further = TYPES[name]
    found = members(getattr(poptorch_types, name))
    assert found
    unknown = {each for each in found if f"{prefix}.{each}" not in NAMES and not hasattr(further, each)}
    assert unknown - MODULE == set()
