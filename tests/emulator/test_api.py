"""Every name of PopTorch 3.3's API table exists here, with its kind, signature, value or default."""

from __future__ import annotations

import enum
import importlib
import inspect
import json
import math
from pathlib import Path
from typing import Any, Dict, List

import pytest
import torch

import ignite_ipu.emulator as poptorch

_TABLE = json.loads((Path(__file__).parent / "data" / "api.json").read_text(encoding="utf-8"))
ENTRIES: List[Dict[str, Any]] = _TABLE["entries"]
_KINDS = {
    "positional_only": inspect.Parameter.POSITIONAL_ONLY,
    "positional_or_keyword": inspect.Parameter.POSITIONAL_OR_KEYWORD,
    "var_positional": inspect.Parameter.VAR_POSITIONAL,
    "keyword_only": inspect.Parameter.KEYWORD_ONLY,
    "var_keyword": inspect.Parameter.VAR_KEYWORD,
}


def of_kind(*kinds: str) -> List[Any]:
    return [pytest.param(entry, id=entry["name"]) for entry in ENTRIES if entry["kind"] in kinds]


def find(name: str) -> Any:
    """Return the object of a dotted name, or its attribute without binding it when it belongs to a class."""
    found: Any = poptorch
    parts = name.split(".")[1:]
    for index, part in enumerate(parts):
        if inspect.ismodule(found) and not hasattr(found, part):
            found = importlib.import_module(f"{found.__name__}.{part}")
        elif inspect.isclass(found) and index == len(parts) - 1:
            found = inspect.getattr_static(found, part)
        elif isinstance(found, property):
            found = getattr(poptorch.Options(), parts[index - 1])
        else:
            found = getattr(found, part)
    return found


def wrapped_model() -> Any:
    """Return a compiled training executor, for attributes that exist only at run time."""

    class Net(torch.nn.Linear):
        def forward(self, x):
            return torch.nn.functional.l1_loss(super().forward(x), x)

    return poptorch.trainingModel(Net(1, 1))


def test_the_table_is_complete():
    assert len(ENTRIES) == _TABLE["counts"]["total"] == 600
    assert {entry["kind"] for entry in ENTRIES} == set(_TABLE["counts"]) - {"total"}


@pytest.mark.parametrize("entry", of_kind("module"))
def test_modules(entry):
    name = entry["name"].replace("poptorch", "ignite_ipu.emulator", 1)
    assert inspect.ismodule(importlib.import_module(name))
    with poptorch.install():
        assert importlib.import_module(entry["name"]).__name__ == entry["name"]


@pytest.mark.parametrize("entry", of_kind("function", "method", "staticmethod"))
def test_signatures(entry):
    """Parameters by name, kind and default, in order; a method's `self` apart."""
    name = entry["name"]
    if name.startswith("<wrapped model class>"):
        function = inspect.getattr_static(type(wrapped_model().model), name.split(".")[-1])
    elif "<parameter>" in name:
        function = type(wrapped_model().weight).replicaGrouping
    else:
        function = find(name)
    static = isinstance(function, staticmethod)
    assert static == (entry["kind"] == "staticmethod")
    parameters = list(inspect.signature(function.__func__ if static else function).parameters.values())
    if entry["kind"] == "method":
        parameters = parameters[1:]
    expected = [(parameter["name"], _KINDS[parameter["kind"]]) for parameter in entry["parameters"]]
    assert [(parameter.name, parameter.kind) for parameter in parameters] == expected
    for parameter, wanted in zip(parameters, entry["parameters"]):
        if "default" not in wanted:
            assert parameter.default is inspect.Parameter.empty, parameter.name
            continue
        value = eval(wanted["default"], {**vars(poptorch), "enums": poptorch.enums, "torch": torch, "math": math})
        assert parameter.default == value and type(parameter.default) is type(value), parameter.name


@pytest.mark.parametrize("entry", of_kind("class", "exception", "enum"))
def test_classes(entry):
    if entry["name"].startswith("<"):
        assert type(wrapped_model().model).__name__ == "PoptorchNet"
        return
    found = find(entry["name"])
    assert inspect.isclass(found)
    mro = [base.__name__ for base in found.__mro__]
    for base in entry["bases"]:
        assert base.split(".")[-1] in mro, f"{entry['name']} does not derive from {base}"
    for alias in [entry.get("also_reachable_as"), entry.get("reachable_as")]:
        if alias is not None:
            other = find(alias)
            assert other is found or type(getattr(poptorch.Options(), alias.split(".")[-1])) is found


@pytest.mark.parametrize("entry", of_kind("enum_member"))
def test_enumeration_members(entry):
    owner, member = entry["name"].rsplit(".", 1)
    found = find(owner)[member]
    assert isinstance(found, enum.Enum) and found.value == entry["value"]


@pytest.mark.parametrize("entry", of_kind("property"))
def test_properties(entry):
    found = find(entry["name"])
    assert isinstance(found, property)
    assert (found.fset is not None) == entry["settable"]


@pytest.mark.parametrize("entry", of_kind("data"))
def test_data(entry):
    found = find(entry["name"])
    expected = {"poptorch.BlockId": str, "poptorch.__version__": poptorch.__version__}
    if entry["name"] in expected:
        assert found == expected[entry["name"]]
    else:
        assert isinstance(found, list)  # custom operators add to it for as long as the process lives


def an_instance(owner: str) -> Any:
    """Return an object of the class that a value or attribute belongs to."""
    parameters = [torch.nn.Parameter(torch.ones(1))]
    dataset = torch.utils.data.TensorDataset(torch.ones(4))
    special = {
        "poptorch.DataLoader": lambda: poptorch.DataLoader(poptorch.Options(), dataset),
        "poptorch.AsynchronousDataAccessor": lambda: poptorch.AsynchronousDataAccessor(
            poptorch.DataLoader(poptorch.Options(), dataset)
        ),
        "poptorch.CPU": lambda: poptorch.CPU(torch.nn.ReLU(), "id"),
        "poptorch.NameScope": lambda: poptorch.NameScope("scope"),
        "poptorch.Phase": lambda: poptorch.Phase("a"),
        "poptorch.PoplarExecutor": wrapped_model,
        "poptorch.options._PopartOptions": lambda: poptorch.Options()._Popart,
        "poptorch.options._TrainingOptions": lambda: poptorch.Options().Training,
        "poptorch.optim.Optimizer": lambda: poptorch.optim.SGD(parameters, lr=1.0),
        "poptorch.optim.SGD": lambda: poptorch.optim.SGD(parameters, lr=1.0),
        "poptorch.Error": lambda: poptorch.createPoptorchError("x"),
        "poptorch.RecoverableError": lambda: poptorch.Fault().error(),
        "poptorch.UnrecoverableError": lambda: poptorch.Fault(recovery_action=None).error(),
    }
    if owner in special:
        return special[owner]()
    found = find(owner)
    return found(parameters) if owner.startswith("poptorch.optim.") else found()


@pytest.mark.parametrize("entry", of_kind("instance_attribute"))
def test_instance_attributes(entry):
    owner, attribute = entry["name"].rsplit(".", 1)
    instance = an_instance(owner)
    assert hasattr(instance, attribute)
    terminate = getattr(instance, "terminate", None)
    if terminate is not None:
        terminate()


# A call that creates each value that only exists afterwards.
_CREATING = {
    "minElementsForOffChip": lambda o: o.minElementsForOffChip(3),
    "minElementsForReplicatedTensorSharding": lambda o: o.minElementsForReplicatedTensorSharding(3),
    "useOnChipStorage": lambda o: o.useOnChipStorage(True),
    "useReplicatedTensorSharding": lambda o: o.useReplicatedTensorSharding(True),
    "useIOTilesToLoad": lambda o: o.useIOTilesToLoad(True),
    "useIOTilesToStore": lambda o: o.useIOTilesToStore(True),
    "modelName": lambda o: o.modelName("name"),
    "useIpuModel": lambda o: o.useIpuModel(True),
    "useIpuId": lambda o: o.useIpuId(1),
    "useOfflineIpuTarget": lambda o: o.useOfflineIpuTarget(),
    "randomSeed": lambda o: o.randomSeed(1),
    "numIOTiles": lambda o: o.numIOTiles(32),
    "setActivationLocation": lambda o: o.setActivationLocation(poptorch.TensorLocationSettings()),
    "setWeightLocation": lambda o: o.setWeightLocation(poptorch.TensorLocationSettings()),
    "setOptimizerLocation": lambda o: o.setOptimizerLocation(poptorch.TensorLocationSettings()),
    "setAccumulatorLocation": lambda o: o.setAccumulatorLocation(poptorch.TensorLocationSettings()),
}


@pytest.mark.parametrize("entry", of_kind("option_value"))
def test_option_values(entry):
    """Readable by name, with their defaults, from the start or once their method was called."""
    owner, name = entry["name"].rsplit(".", 1)
    options = an_instance(owner)
    creating = entry.get("created_by")
    if creating is not None:
        assert not options.exists(name)
        _CREATING[creating.split(".")[-1]](options)
    default = options(name)
    if isinstance(options, poptorch.Options) and options.defaultOutputMode():
        options.outputMode(poptorch.OutputMode.All)
    assert options.exists(name) and name in options.toDict() and name in repr(options)
    if not entry.get("hidden_by_method"):
        assert getattr(options, name) == options(name)
    if creating is None and entry["default"] is not None:
        assert default == eval(entry["default"], {**vars(poptorch), "enums": poptorch.enums})
