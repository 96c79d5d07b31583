"""The record that a PopTorch optimizer keeps of the device's state: dictionaries and copies."""

from __future__ import annotations

import copy
import pickle
from typing import Any, Callable, Dict, List, Tuple, Type

import pytest
import torch

from ignite_ipu.emulator import optim
from ignite_ipu.emulator.optim.description import describe

CLASSES: List[Type[Any]] = [optim.SGD, optim.Adam, optim.AdamW, optim.RMSprop, optim.LAMB]
COPIES: List[Tuple[str, Callable[[Any], Any]]] = [
    ("copy", copy.copy),
    ("deepcopy", copy.deepcopy),
    ("pickle", lambda o: pickle.loads(pickle.dumps(o))),
]


def made(kind: Type[Any] = optim.Adam, **arguments: Any) -> Any:
    return kind([torch.nn.Parameter(torch.ones(2))], lr=0.1, **arguments)


def state(value: float) -> Dict[str, Any]:
    return {
        "ipu_state": {"Accl1___w": torch.full((2,), value)},
        "ipu_param": {"learningRate___specific___w": torch.tensor(0.1)},
    }


def velocity(optimizer: optim.Optimizer) -> float:
    return float(optimizer.state_dict()["ipu_state"]["Accl1___w"][0])


@pytest.mark.parametrize("kind", CLASSES)
def test_a_state_dictionary_has_four_entries(kind: Type[Any]) -> None:
    """Before the first attach the device's are None; the others are torch's."""
    optimizer = made(kind)
    found = optimizer.state_dict()
    assert set(found) == {"ipu_state", "ipu_param", "state", "param_groups"}
    assert found["ipu_state"] is None and found["ipu_param"] is None
    assert found["param_groups"][0]["lr"] == 0.1
    assert not optimizer.has_state()
    assert set(optimizer.get_state_dict()) == {"state", "param_groups"}


@pytest.mark.parametrize("kind", CLASSES)
def test_a_loaded_dictionary_comes_back_and_waits_for_the_device(kind: Type[Any]) -> None:
    source, optimizer = made(kind), made(kind)
    source.param_groups[0]["lr"] = 0.7
    source.set_state_dict(state(3.0))
    optimizer.load_state_dict(source.state_dict())
    assert optimizer.has_state() and optimizer.ipu_state_is_dirty
    assert optimizer.param_groups[0]["lr"] == 0.7
    assert velocity(optimizer) == 3.0
    assert set(optimizer.get_state_dict()) == {"ipu_state", "ipu_param", "state", "param_groups"}
    assert optimizer.get_state_dict()["ipu_param"] == state(3.0)["ipu_param"]


def test_a_loaded_state_is_the_optimizers_own() -> None:
    loaded, optimizer = state(3.0), made()
    optimizer.set_state_dict(loaded)
    loaded["ipu_state"]["Accl1___w"].zero_()
    assert velocity(optimizer) == 3.0


def test_a_dictionary_saved_before_the_first_attach_has_nothing_to_upload() -> None:
    optimizer = made()
    optimizer.load_state_dict(made().state_dict())
    assert not optimizer.has_state()
    assert not optimizer.ipu_state_is_dirty


def test_a_torch_state_dictionary_is_refused() -> None:
    theirs = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=1.0).state_dict()
    with pytest.raises(RuntimeError, match="Only IPU optimizer states can be loaded"):
        made(optim.SGD).load_state_dict(theirs)


@pytest.mark.parametrize("missing", ["ipu_state", "ipu_param"])
def test_both_device_entries_are_required(missing: str) -> None:
    entries = state(1.0)
    del entries[missing]
    with pytest.raises(RuntimeError, match=f"Only IPU optimizer states.*{missing} missing"):
        made().set_state_dict(entries)


def test_an_empty_dictionary_is_refused_by_each_in_its_own_way() -> None:
    with pytest.raises(RuntimeError, match="because it is empty"):
        made().set_state_dict({})
    with pytest.raises(KeyError):
        made().load_state_dict({})


def test_groups_must_match_before_the_state_is_looked_at() -> None:
    source = optim.Adam([{"params": [torch.nn.Parameter(torch.ones(2))]} for _ in range(2)])
    optimizer = made()
    with pytest.raises(ValueError, match="different number of parameter groups"):
        optimizer.load_state_dict({**source.state_dict(), **state(1.0)})
    assert not optimizer.has_state()


@pytest.mark.parametrize(("name", "duplicate"), COPIES)
@pytest.mark.parametrize("kind", CLASSES)
def test_copies_keep_attributes_and_state(kind: Type[Any], name: str, duplicate: Callable[[Any], Any]) -> None:
    more: Dict[str, Any] = {"loss_scaling": 8.0, "accum_type": torch.float16}
    if kind not in (optim.RMSprop, optim.LAMB):
        more["max_grad_norm"] = 2.0
    if kind is optim.SGD:
        more.update(use_combined_accum=True, velocity_scaling=4.0)
    if kind is optim.RMSprop:
        more.update(use_tf_variant=True)
    optimizer = made(kind, **more)
    optimizer.set_state_dict(state(3.0))
    other = duplicate(optimizer)
    assert type(other) is kind
    assert describe(other) == describe(optimizer)
    assert set(vars(other)) >= {name for name in vars(optimizer) if not name.startswith("_")}
    assert velocity(other) == 3.0
    other.variable_attrs.markAsConstant("lr")
    assert not optimizer.variable_attrs.isConstant("lr")


def test_an_optimizer_with_a_scheduler_can_be_pickled() -> None:
    """Schedulers wrap `step()` in a function that pickle knows nothing of."""
    optimizer = made()
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    assert describe(pickle.loads(pickle.dumps(optimizer))) == describe(optimizer)
