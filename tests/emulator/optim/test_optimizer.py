"""The state that a PopTorch optimizer keeps for the device: dictionaries, copies, and who has the newest."""

from __future__ import annotations

import copy
import pickle
from typing import Any, Callable, Dict, List, Optional, Tuple, Type

import pytest
import torch

from ignite_ipu.emulator import optim
from ignite_ipu.emulator.optim.description import describe
from ignite_ipu.emulator.optim.optimizer import IpuState

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


class Device:
    """An executor whose device counts updates in its state."""

    def __init__(self) -> None:
        self.value: Optional[float] = 0.0
        self.reads = 0

    def _read_optimizer_state(self) -> Optional[IpuState]:
        if self.value is None:
            return None
        self.reads += 1
        found = state(self.value)
        return found["ipu_state"], found["ipu_param"]

    def run(self, optimizer: optim.Optimizer) -> None:
        """Do as an executor does: upload what is pending, train, and say so."""
        pending = optimizer._pending_state()
        if pending is not None:
            self.value = float(pending[0]["Accl1___w"][0])
            optimizer._uploaded()
        assert self.value is not None
        self.value += 1.0
        optimizer._device_is_newer()


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


@pytest.mark.parametrize("kind", CLASSES)
def test_a_loaded_dictionary_comes_back_and_waits_for_the_device(kind: Type[Any]) -> None:
    source, optimizer = made(kind), made(kind)
    source.param_groups[0]["lr"] = 0.7
    source.set_state_dict(state(3.0))
    optimizer.load_state_dict(source.state_dict())
    assert optimizer.has_state() and optimizer.ipu_state_is_dirty
    assert optimizer.param_groups[0]["lr"] == 0.7
    assert velocity(optimizer) == 3.0
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
    assert optimizer._pending_state() is None


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


def test_a_copy_has_the_newest_state_and_no_device() -> None:
    optimizer, device = made(), Device()
    optimizer._attach_to(device)
    device.run(optimizer)
    other = copy.deepcopy(optimizer)
    device.run(optimizer)
    assert velocity(other) == 1.0
    assert velocity(optimizer) == 2.0


def test_an_optimizer_with_a_scheduler_can_be_pickled() -> None:
    """Schedulers wrap `step()` in a function that pickle knows nothing of."""
    optimizer = made()
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    assert describe(pickle.loads(pickle.dumps(optimizer))) == describe(optimizer)


# -- on a device ----------------------------------------------------------------------------------------------------


def test_the_device_is_read_once_for_each_run() -> None:
    optimizer, device = made(), Device()
    optimizer._attach_to(device)
    assert not optimizer.host_state_is_dirty
    for run in (1, 2):
        device.run(optimizer)
        assert optimizer.host_state_is_dirty
        assert velocity(optimizer) == velocity(optimizer) == run
        assert optimizer.has_state() and not optimizer.host_state_is_dirty
        assert device.reads == run


def test_a_loaded_state_is_uploaded_once_and_overrides_the_devices() -> None:
    optimizer, device = made(), Device()
    optimizer._attach_to(device)
    device.run(optimizer)
    optimizer.set_state_dict(state(10.0))
    assert velocity(optimizer) == 10.0
    device.run(optimizer)
    assert optimizer._pending_state() is None
    assert velocity(optimizer) == 11.0
    device.run(optimizer)
    assert velocity(optimizer) == 12.0


def test_state_survives_the_loss_of_the_device() -> None:
    optimizer, device = made(), Device()
    optimizer._attach_to(device)
    device.run(optimizer)
    optimizer._keep_for_next_attach()
    device.value = None
    assert velocity(optimizer) == 1.0
    device.value = 0.0
    device.run(optimizer)
    assert velocity(optimizer) == 2.0


def test_a_replaced_optimizer_keeps_its_state_and_the_new_one_brings_its_own() -> None:
    old, new, device = made(), made(), Device()
    new.set_state_dict(state(5.0))
    old._attach_to(device)
    device.run(old)
    old._detach()
    new._attach_to(device)
    device.run(new)
    assert velocity(old) == 1.0
    assert velocity(new) == 6.0


def test_attaching_again_to_the_same_device_uploads_nothing() -> None:
    optimizer, device = made(), Device()
    optimizer._attach_to(device)
    device.run(optimizer)
    assert velocity(optimizer) == 1.0
    optimizer._attach_to(device)
    assert optimizer._pending_state() is None


def test_an_optimizer_moves_from_one_device_to_another_with_its_state() -> None:
    optimizer, first, second = made(), Device(), Device()
    optimizer._attach_to(first)
    first.run(optimizer)
    optimizer._attach_to(second)
    second.run(optimizer)
    assert velocity(optimizer) == 2.0
    assert first.reads == 1


def test_a_device_without_state_leaves_what_was_there() -> None:
    optimizer, device = made(), Device()
    optimizer.set_state_dict(state(4.0))
    device.value = None
    optimizer._attach_to(device)
    optimizer._device_is_newer()
    assert velocity(optimizer) == 4.0
