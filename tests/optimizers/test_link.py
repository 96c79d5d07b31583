"""The user's optimizer stays the handle: its values reach the device, and it shows the device's state."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import warnings
import weakref
from typing import Any, Dict, List, Optional

import pytest
import torch
from torch import nn

from ignite_ipu import backend
from ignite_ipu.errors import ConstantAttributeError, OptimizerError
from ignite_ipu.optimizers.changes import Change
from ignite_ipu.optimizers.conversion import convert_optimizer
from ignite_ipu.optimizers.link import OptimizerLink

poptorch = backend.poptorch()


class Executor:
    """Stands in for a PoplarExecutor: records the values sent to it."""

    def __init__(self, compiled: bool = True, refuses: bool = False) -> None:
        self.compiled = compiled
        self.refuses = refuses
        self.sent: List[Any] = []

    def isCompiled(self) -> bool:
        return self.compiled

    def setOptimizer(self, optimizer: Any) -> None:
        if self.refuses:
            raise poptorch.Error("not a valid replacement")
        self.sent.append([group["lr"] for group in optimizer.param_groups])


class Device:
    """Stands in for the state on a device, in PopTorch's structure; counts how often it is read and written."""

    def __init__(self, state: Optional[Dict[str, torch.Tensor]] = None) -> None:
        self.state = state
        self.reads = self.writes = 0

    def read(self) -> Dict[str, Any]:
        self.reads += 1
        return {"ipu_state": self.state, "ipu_param": None if self.state is None else {}}

    def write(self, state: Dict[str, Any]) -> None:
        self.writes += 1
        self.state = state["ipu_state"]


def linked(make: Any, device: Optional[Device] = None, **arguments: Any) -> Any:
    """Return a model, its optimizer, and the link between it and a stand-in for the device."""
    layer = nn.Linear(3, 2)
    optimizer = make(layer.parameters())
    names = {f"model.{name}": parameter for name, parameter in layer.named_parameters()}
    device = device or Device()
    return layer, optimizer, link_to(device, convert_optimizer(optimizer, **arguments), names)


def link_to(device: Device, conversion: Any, names: Dict[str, Any]) -> OptimizerLink:
    """Return the link of a conversion whose device's optimizer has the method of an executor, which asks `device`."""
    conversion.optimizer.state_dict, conversion.optimizer.set_state_dict = device.read, device.write
    return OptimizerLink(conversion, names)


def momentum_sgd(parameters: Any) -> torch.optim.SGD:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def test_a_change_is_sent_once() -> None:
    """Unchanged values send nothing; a changed one is sent with the next push, and only then."""
    _, optimizer, link = linked(momentum_sgd)
    executor = Executor()
    assert link.push(executor) == ()
    optimizer.param_groups[0]["lr"] = 0.5
    assert link.push(executor) == (Change(0, "lr", 0.1, 0.5),)
    assert link.push(executor) == ()
    assert executor.sent == [[0.5]]


def test_a_value_changed_there_and_back_is_not_sent() -> None:
    """Only the value before the next step counts."""
    _, optimizer, link = linked(momentum_sgd)
    optimizer.param_groups[0]["lr"] = 0.5
    optimizer.param_groups[0]["lr"] = 0.1
    executor = Executor()
    link.push(executor)
    assert executor.sent == []


@pytest.mark.parametrize(
    "make",
    [
        lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5),
        lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10),
        lambda optimizer: torch.optim.lr_scheduler.CyclicLR(optimizer, 0.1, 0.2, cycle_momentum=True),
        lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10),
    ],
)
@pytest.mark.parametrize("scheduler_first", [True, False])
def test_torch_schedulers_drive_the_device(make: Any, scheduler_first: bool) -> None:
    """Made before or after the link, they change the device's values, momentum included, without a warning."""
    layer = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    names = {f"model.{name}": parameter for name, parameter in layer.named_parameters()}
    scheduler = make(optimizer) if scheduler_first else None
    link = OptimizerLink(convert_optimizer(optimizer), names)
    scheduler = scheduler or make(optimizer)
    for _ in range(4):
        link.push(Executor())
        link.stepped(1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            scheduler.step()
        link.push(Executor())
        device = link.conversion.optimizer.param_groups[0]
        assert device["lr"] == pytest.approx(scheduler.get_last_lr()[0])
        assert device["momentum"] == optimizer.param_groups[0]["momentum"]


def test_schedulers_warn_if_no_step_was_made() -> None:
    """torch's warning about a wrong order of calls keeps its meaning."""
    _, optimizer, _ = linked(momentum_sgd)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    with pytest.warns(UserWarning, match="before `optimizer.step"):
        scheduler.step()


def test_a_changed_constant_is_refused_by_name() -> None:
    """Nothing is sent, the device's optimizer keeps its values, and the message explains how to make it variable."""
    _, optimizer, link = linked(momentum_sgd)
    executor = Executor()
    optimizer.param_groups[0].update(lr=0.5, weight_decay=0.1)
    with pytest.raises(
        ConstantAttributeError,
        match=r"group 0 changed from 0\.0 to 0\.1.*variable=\('weight_decay',\)",
    ) as caught:
        link.push(executor)
    assert caught.value.attribute == "weight_decay"
    assert executor.sent == []
    assert link.conversion.optimizer.param_groups[0]["lr"] == 0.1
    optimizer.param_groups[0]["weight_decay"] = 0
    link.push(executor)
    assert executor.sent == [[0.5]]


def test_structural_changes_are_refused() -> None:
    """Nesterov decides which update is compiled."""
    _, optimizer, link = linked(momentum_sgd)
    optimizer.param_groups[0]["nesterov"] = True
    with pytest.raises(ConstantAttributeError, match=r"nesterov.*create a new trainer"):
        link.push(Executor())


IMPLEMENTATION = {"foreach", "fused", "capturable", "differentiable"}
DECIDING = [
    (made, name)
    for made in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop)
    for name in made([nn.Parameter(torch.ones(1))], lr=0.1).defaults
    if name not in IMPLEMENTATION
]


@pytest.mark.parametrize(("made", "name"), DECIDING, ids=lambda value: getattr(value, "__name__", value))
def test_whatever_changes_the_mathematics_is_sent_or_refused(made: Any, name: str) -> None:
    """No argument of torch's classes can be changed without notice, except those for torch's implementation."""
    _, optimizer, link = linked(lambda parameters: made(parameters, lr=0.1))
    group, executor = optimizer.param_groups[0], Executor()
    group[name] = not group[name] if isinstance(group[name], bool) else (0.5, 0.7) if name == "betas" else 0.25
    if name in link.conversion.variable:
        link.push(executor)
        assert link.conversion.optimizer.param_groups[0][name] == group[name]
        return
    with pytest.raises(ConstantAttributeError, match=f"^{name} of parameter group 0 changed"):
        link.push(executor)
    assert executor.sent == []


@pytest.mark.parametrize("name", ["maximize", "amsgrad", "decoupled_weight_decay"])
def test_what_the_conversion_settled_cannot_change_before_compilation_either(name: str) -> None:
    """The device's optimizer does not know it, so it would be ignored."""
    _, optimizer, link = linked(lambda parameters: torch.optim.Adam(parameters, weight_decay=0.1))
    if name not in optimizer.param_groups[0]:
        pytest.skip(f"torch.optim.Adam of this PyTorch has no {name}")
    optimizer.param_groups[0][name] = not optimizer.param_groups[0][name]
    for send in (link.push, lambda: link.push(Executor(compiled=False))):
        with pytest.raises(ConstantAttributeError, match=name):
            send()


def test_dampening_is_refused_when_momentum_makes_it_count() -> None:
    """Without momentum torch ignores it; with momentum, which may become variable, PopTorch damps otherwise."""
    _, optimizer, link = linked(lambda p: torch.optim.SGD(p, lr=0.1, dampening=0.5), variable=("momentum",))
    optimizer.param_groups[0]["momentum"] = 0.9
    with pytest.raises(OptimizerError, match=r"dampening=0\.5: torch leaves the first velocity undamped"):
        link.push(Executor())
    assert link.conversion.optimizer.param_groups[0]["momentum"] == 0


def test_constants_may_change_until_compiled() -> None:
    """Before the first call they are not compiled in yet."""
    _, optimizer, link = linked(momentum_sgd)
    optimizer.param_groups[0]["weight_decay"] = 0.1
    link.push(Executor(compiled=False))
    assert link.conversion.optimizer.param_groups[0]["weight_decay"] == 0.1


def test_a_model_that_is_wrapped_anew_takes_every_value() -> None:
    """PopTorch reads the optimizer when it wraps the model: constants are compiled anew, nothing needs sending."""
    _, optimizer, link = linked(momentum_sgd)
    optimizer.param_groups[0]["weight_decay"] = 0.1
    assert link.push() == (Change(0, "weight_decay", 0.0, 0.1),)
    assert link.conversion.optimizer.param_groups[0]["weight_decay"] == 0.1
    assert link.push() == () and link.push(Executor()) == ()


def test_a_refused_description_is_taken_back() -> None:
    """PopTorch trips over it later otherwise."""
    _, optimizer, link = linked(momentum_sgd)
    optimizer.param_groups[0]["lr"] = 0.5
    with pytest.raises(poptorch.Error):
        link.push(Executor(refuses=True))
    assert link.conversion.optimizer.param_groups[0]["lr"] == 0.1
    executor = Executor()
    link.push(executor)
    assert executor.sent == [[0.5]]


def test_after_a_refused_description_the_executor_is_given_the_former_one_again() -> None:
    """PopTorch notes a refused state, and reads no state until it has accepted another one."""
    _, optimizer, link = linked(momentum_sgd)

    class RefusesOnce(Executor):
        def setOptimizer(self, optimizer: Any) -> None:
            super().setOptimizer(optimizer)
            if len(self.sent) == 1:
                raise poptorch.Error("not a valid replacement")

    executor = RefusesOnce()
    optimizer.param_groups[0]["lr"] = 0.5
    with pytest.raises(poptorch.Error, match="not a valid"):
        link.push(executor)
    assert executor.sent == [[0.5], [0.1]]


def test_velocities_keep_their_meaning_when_the_loss_scaling_changes() -> None:
    """PopTorch leaves the numbers alone: a value stored times 128 has to be stored times 64."""
    device = Device({"Accl1___model.weight": torch.full((2, 3), 256.0)})
    layer, optimizer, link = linked(momentum_sgd, device, loss_scaling=128.0)
    link.stepped(1)
    optimizer.loss_scaling = 64.0
    link.push(Executor())
    assert device.state is not None and device.state["Accl1___model.weight"].unique().tolist() == [128.0]
    assert optimizer.state[layer.weight]["momentum_buffer"].unique().tolist() == [2.0]
    assert device.writes == 1
    link.push(Executor())
    assert device.writes == 1


def test_moments_that_carry_no_loss_scaling_are_left_alone_when_it_changes() -> None:
    device = Device({"Accl1___model.weight": torch.ones(2, 3), "Accl2___model.weight": torch.ones(2, 3)})
    _, optimizer, link = linked(torch.optim.Adam, device, loss_scaling=128.0)
    optimizer.loss_scaling = 64.0
    link.push(Executor())
    assert (device.reads, device.writes) == (0, 0)


def test_an_optimizer_whose_link_is_dropped_is_an_ordinary_one() -> None:
    """It keeps neither the link nor, by it, the objects that PopTorch ties to the device's optimizer."""
    layer, optimizer, link = linked(momentum_sgd)
    gone = weakref.ref(link.conversion.optimizer)
    del link
    gc.collect()
    assert gone() is None and type(optimizer) is torch.optim.SGD
    layer(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert len(optimizer.state_dict()["state"]) == 2


def test_loss_scaling_is_an_attribute() -> None:
    """As it is for PopTorch; it can be scheduled when it is variable."""
    _, optimizer, link = linked(momentum_sgd, loss_scaling=128.0)
    optimizer.loss_scaling = 64.0
    assert link.push(Executor()) == (Change(None, "loss_scaling", 128.0, 64.0),)
    assert link.conversion.optimizer.loss_scaling == 64.0


@pytest.mark.parametrize(("value", "message"), [(float("nan"), "lr of the optimizer is nan"), ("fast", "no number")])
def test_values_no_update_survives(value: Any, message: str) -> None:
    """They are refused before the device sees them."""
    _, optimizer, link = linked(momentum_sgd)
    optimizer.param_groups[0]["lr"] = value
    with pytest.raises(OptimizerError, match=message):
        link.push(Executor())


def test_tensor_and_numpy_values_are_read_as_numbers() -> None:
    """Schedulers fill tensors in place; only a changed value is a change."""
    layer = nn.Linear(3, 2)
    lr = torch.tensor(0.5)
    optimizer = torch.optim.SGD(layer.parameters(), lr=lr)
    with pytest.warns(UserWarning, match="tensor"):
        conversion = convert_optimizer(optimizer)
    link = OptimizerLink(conversion, {f"model.{n}": p for n, p in layer.named_parameters()})
    executor = Executor()
    assert link.push(executor) == ()
    lr.fill_(0.25)
    link.push(executor)
    assert executor.sent == [[0.25]]


def test_groups_cannot_be_added() -> None:
    """The update is compiled for the groups there are."""
    layer, optimizer, link = linked(lambda parameters: torch.optim.SGD(list(parameters)[:1], lr=0.1))
    with pytest.raises(OptimizerError, match="A parameter group cannot be added"):
        optimizer.add_param_group({"params": [layer.bias]})
    optimizer.param_groups[0]["params"].append(layer.bias)
    with pytest.raises(OptimizerError, match=r"groups of \[2\] parameters, but .* for groups of \[1\]"):
        link.push(Executor())


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda groups, other: groups.reverse(), "the same parameters in other groups"),
        (lambda groups, other: groups[0].update(params=[other]), "other parameters"),
    ],
)
def test_groups_cannot_change_their_parameters(change: Any, found: str) -> None:
    """The message has the ways out: before the first step, another optimizer, or updates on the host."""
    _, optimizer, link = linked(lambda parameters: torch.optim.SGD([{"params": [each]} for each in parameters], lr=0.1))
    change(optimizer.param_groups, nn.Parameter(torch.ones(2)))
    with pytest.raises(OptimizerError, match=rf"made for {found}\. .*before the first step.*update='host'"):
        link.push(Executor())


def test_host_steps_are_refused() -> None:
    """There are no gradients on the host; a step there would silently do nothing."""
    _, optimizer, link = linked(momentum_sgd)
    with pytest.raises(OptimizerError, match=r"SGD\.step\(\) was called, but the weights are on an IPU"):
        optimizer.step()
    link.detach()
    optimizer.step()


def after_training(make: Any, state: Dict[str, torch.Tensor], updates: int, **arguments: Any) -> Any:
    device = Device()
    layer, optimizer, link = linked(make, device, **arguments)
    device.state = state
    link.stepped(updates)
    return layer, optimizer, link, device


VELOCITY = {"Accl1___model.weight": torch.full((2, 3), 2.0), "Accl1___model.bias": torch.full((2,), 3.0)}


def test_state_dict_is_torchs_with_the_devices_values() -> None:
    """It is read when it is asked for, and once until the next step."""
    _, optimizer, link, device = after_training(momentum_sgd, VELOCITY, 5)
    assert device.reads == 0
    saved = optimizer.state_dict()
    assert saved["param_groups"][0]["params"] == [0, 1]
    assert torch.equal(saved["state"][0]["momentum_buffer"], torch.full((2, 3), 2.0))
    assert torch.equal(saved["state"][1]["momentum_buffer"], torch.full((2,), 3.0))
    optimizer.state_dict()
    assert device.reads == 1
    device.state = {name: tensor + 1 for name, tensor in VELOCITY.items()}
    link.stepped(1)
    assert float(optimizer.state_dict()["state"][1]["momentum_buffer"][0]) == 4
    assert float(saved["state"][1]["momentum_buffer"][0]) == 4  # as in eager PyTorch


def test_state_attribute_is_current() -> None:
    """`optimizer.state[parameter]` works as on a GPU."""
    layer, optimizer, _link, _ = after_training(momentum_sgd, VELOCITY, 5)
    assert torch.equal(optimizer.state[layer.bias]["momentum_buffer"], torch.full((2,), 3.0))


def test_steps_that_only_torch_counts() -> None:
    """RMSprop's step count exists in torch's state but not on the device."""
    state = {f"Accl1___model.{name}": torch.ones(shape) for name, shape in (("weight", (2, 3)), ("bias", (2,)))}
    _, optimizer, link, _ = after_training(torch.optim.RMSprop, state, 5)
    link.stepped(2)
    assert float(optimizer.state_dict()["state"][0]["step"]) == 7


def test_before_the_first_step_the_state_is_empty() -> None:
    """As torch's is."""
    _, optimizer, _ = linked(momentum_sgd)
    assert optimizer.state_dict()["state"] == {}


def test_velocities_on_the_device_carry_the_loss_scaling() -> None:
    """torch's do not: reading divides it out, loading puts it in, and a change meanwhile is minded."""
    device = Device()
    _, optimizer, link = linked(momentum_sgd, device, loss_scaling=4.0)
    device.state = {name: tensor * 4 for name, tensor in VELOCITY.items()}
    link.stepped(1)
    saved = optimizer.state_dict()
    optimizer.load_state_dict(saved)
    assert float(device.state["Accl1___model.bias"][0]) == 12
    optimizer.loss_scaling = 8.0
    link.push(Executor())
    assert float(device.state["Accl1___model.bias"][0]) == 24


def test_load_state_dict_reaches_the_device() -> None:
    """torch's structure goes in; hyper-parameters are sent with the next push, moments are written at once."""
    _, saved, _link, _ = after_training(momentum_sgd, VELOCITY, 5)
    state_dict = saved.state_dict()
    state_dict["param_groups"][0]["lr"] = 0.7
    device = Device()
    layer, optimizer, link = linked(momentum_sgd, device)
    optimizer.load_state_dict(state_dict)
    assert device.writes == 1
    assert device.state is not None
    assert {name: tensor.tolist() for name, tensor in device.state.items()} == {
        name: tensor.tolist() for name, tensor in VELOCITY.items()
    }
    assert link.push(Executor()) == (Change(0, "lr", 0.1, 0.7),)
    assert torch.equal(optimizer.state[layer.bias]["momentum_buffer"], torch.full((2,), 3.0))


def test_state_present_before_the_link_reaches_the_device() -> None:
    """A run begun in eager PyTorch goes on with its moments."""
    layer = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(layer.parameters())
    layer(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    device = Device()
    names = {f"model.{name}": parameter for name, parameter in layer.named_parameters()}
    _link = link_to(device, convert_optimizer(optimizer), names)
    assert device.state is not None
    assert torch.equal(device.state["Accl1___model.weight"], optimizer.state[layer.weight]["exp_avg"])
    assert float(device.state["Step___model.weight"]) == 1


def test_a_state_that_does_not_load_changes_nothing() -> None:
    """torch's own check raises, and the device's state is still shown."""
    _, optimizer, _, device = after_training(momentum_sgd, VELOCITY, 5)
    with pytest.raises(ValueError, match="different number of parameter groups"):
        optimizer.load_state_dict({"state": {}, "param_groups": []})
    assert device.writes == 0
    assert float(optimizer.state_dict()["state"][1]["momentum_buffer"][0]) == 3


def test_poptorchs_state_dict_is_refused() -> None:
    """torch would accept it and lose the moments."""
    _, optimizer, _ = linked(momentum_sgd)
    with pytest.raises(OptimizerError, match=r"saved by an optimizer of poptorch\.optim"):
        optimizer.load_state_dict({"ipu_state": {}, "ipu_param": {}, "state": {}, "param_groups": []})


def test_the_object_stays_what_it_was() -> None:
    """Its class is still a torch.optim.SGD to everybody who asks, and exactly that again after detaching."""
    _, optimizer, link, _ = after_training(momentum_sgd, VELOCITY, 5)
    assert isinstance(optimizer, torch.optim.SGD) and type(optimizer).__name__ == "SGD"
    assert repr(optimizer).startswith("SGD (")
    link.detach()
    assert type(optimizer) is torch.optim.SGD
    assert float(optimizer.state_dict()["state"][1]["momentum_buffer"][0]) == 3
    link.detach()


@pytest.mark.parametrize("copy_it", [copy.deepcopy, lambda optimizer: pickle.loads(pickle.dumps(optimizer))])
def test_copies_are_plain_torch_with_the_newest_state(copy_it: Any) -> None:
    """They need neither this package nor a device."""
    _, optimizer, _link, _ = after_training(momentum_sgd, VELOCITY, 5)
    duplicate = copy_it(optimizer)
    assert type(duplicate) is torch.optim.SGD
    assert float(duplicate.state_dict()["state"][1]["momentum_buffer"][0]) == 3
    assert isinstance(optimizer.state_dict()["state"][1]["momentum_buffer"], torch.Tensor)
    duplicate.step()


def test_checkpoints_hold_plain_types() -> None:
    """They load with weights_only, so without unpickling anything of ours."""
    _, optimizer, _link, _ = after_training(momentum_sgd, VELOCITY, 5)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert type(loaded["state"][0]["momentum_buffer"]) is torch.Tensor


def test_an_optimizer_has_one_session() -> None:
    """Two would have two states."""
    layer, optimizer, link = linked(momentum_sgd)
    names = {f"model.{name}": parameter for name, parameter in layer.named_parameters()}
    with pytest.raises(OptimizerError, match="already trains a model on an IPU"):
        OptimizerLink(convert_optimizer(optimizer), names)
    link.detach()
    optimizer.step()
    OptimizerLink(convert_optimizer(optimizer), names)


def test_a_state_that_does_not_fit_leaves_the_optimizer_as_it_was() -> None:
    """Without the state it steps on the host, and can be linked."""
    layer = nn.Linear(3, 2)
    optimizer = momentum_sgd(layer.parameters())
    names = {f"model.{name}": parameter for name, parameter in layer.named_parameters()}
    optimizer.state[layer.weight] = {"momentum_buffer": torch.zeros(5)}
    with pytest.raises(OptimizerError, match=r"has shape \(5,\), but the parameter has \(2, 3\)"):
        OptimizerLink(convert_optimizer(optimizer), names)
    assert type(optimizer) is torch.optim.SGD
    optimizer.state.clear()
    layer(torch.ones(1, 3)).sum().backward()
    before = layer.weight.detach().clone()
    optimizer.step()
    assert torch.equal(layer.weight, before - 0.1)
    OptimizerLink(convert_optimizer(optimizer), names)


def test_parameters_need_a_name_on_the_device() -> None:
    """A parameter the compiled module does not have cannot be updated there."""
    layer = nn.Linear(3, 2)
    with pytest.raises(OptimizerError, match=r"Parameters \[1\] of the optimizer are not parameters of the compiled"):
        OptimizerLink(convert_optimizer(momentum_sgd(layer.parameters())), {"model.weight": layer.weight})


def test_poptorch_optimizers_are_linked_as_they_are() -> None:
    """Changes are pushed; a changed constant is put back, for PopTorch trips over it; the state stays PopTorch's."""
    layer = nn.Linear(3, 2)
    optimizer = poptorch.optim.SGD(layer.parameters(), lr=0.1)
    link = OptimizerLink(convert_optimizer(optimizer), {f"model.{n}": p for n, p in layer.named_parameters()})
    optimizer.param_groups[0]["lr"] = 0.5
    executor = Executor()
    link.push(executor)
    assert executor.sent == [[0.5]]
    optimizer.param_groups[0]["momentum"] = 0.9
    with pytest.raises(ConstantAttributeError, match=r"Pass momentum explicitly to poptorch\.optim\.SGD"):
        link.push(executor)
    assert optimizer.param_groups[0]["momentum"] == 0
    assert "ipu_state" in optimizer.state_dict()
    assert type(optimizer) is poptorch.optim.SGD


def test_pushing_touches_no_parameter() -> None:
    """A wrapped parameter downloads all weights when it is touched; an unchanged push must not."""
    layer, optimizer, link = linked(momentum_sgd)

    class Untouchable(nn.Parameter):
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(f"a parameter was touched: {name}")

    for parameter in layer.parameters():
        parameter.__class__ = Untouchable
    executor = Executor()
    for value in (0.1, 0.2):
        optimizer.param_groups[0]["lr"] = value
        link.push(executor)
        link.stepped(1)
    assert executor.sent == [[0.2]]
