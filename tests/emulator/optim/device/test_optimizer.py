"""The optimizer on the device: groups, missing gradients, replicas, state, and loss scaling."""

from __future__ import annotations

import logging
import math
from typing import Any, Dict, List, Optional

import pytest
import torch

from ignite_ipu.emulator import optim
from ignite_ipu.emulator.enums import CommGroupType, VariableRetrievalMode
from ignite_ipu.emulator.errors import Error
from ignite_ipu.emulator.optim.description import describe
from ignite_ipu.emulator.optim.device import foreach
from ignite_ipu.emulator.optim.device import optimizer as device_optimizer
from ignite_ipu.emulator.optim.device.optimizer import DeviceOptimizer
from ignite_ipu.emulator.values.replica_groups import ReplicaGroups

MAKERS: Dict[str, Any] = {
    "sgd": lambda p: optim.SGD(p, 0.1, 0.9, weight_decay=0.1),
    "combined": lambda p: optim.SGD(p, 0.1, 0.9, weight_decay=0.1, use_combined_accum=True, velocity_scaling=4.0),
    "adam": lambda p: optim.Adam(p, 0.1, weight_decay=0.1),
    "adamw": lambda p: optim.AdamW(p, 0.1),
    "rmsprop": lambda p: optim.RMSprop(p, 0.1, momentum=0.5, centered=True),
    "lamb": lambda p: optim.LAMB(p, 0.1),
}
STATES = {
    "sgd": {"Accl1"},
    "combined": {"Accl1"},
    "adam": {"Accl1", "Accl2", "Step"},
    "adamw": {"Accl1", "Accl2", "Step"},
    "rmsprop": {"Accl1", "Accl2", "Accl3"},
    "lamb": {"Accl1", "Accl2", "Step"},
}


def params(count: int = 2) -> List[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.full((3,), 1.0 + index)) for index in range(count)]


def device(optimizer: torch.optim.Optimizer, group_of: Optional[Dict[str, Optional[int]]] = None, **more: Any) -> Any:
    """Return the device's optimizer over copies of the parameters, named a, b, c ..., with the copies as `.weights`."""
    own = [p for group in optimizer.param_groups for p in group["params"]]
    groups = [index for index, group in enumerate(optimizer.param_groups) for _ in group["params"]]
    weights = {"abcdef"[i]: p.detach().clone() for i, p in enumerate(own)}
    found: Any = DeviceOptimizer(describe(optimizer), weights, group_of or dict(zip(weights, groups)), **more)
    found.weights = weights
    return found


def groups_of(replicas: int) -> ReplicaGroups:
    """Each replica a group of its own."""
    return ReplicaGroups("a", CommGroupType.NoGrouping, 0, VariableRetrievalMode.OnePerGroup, replicas)


def steps(which: Any, count: int, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        which.update([torch.randn(w.shape, generator=generator) for w in which.weights.values()])


@pytest.mark.parametrize("most", [1 << 22, 3])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop])
def test_every_group_has_values_of_its_own(kind: Any, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three groups with different rates and decays end where torch's end, however many weights are updated at once."""
    monkeypatch.setattr(device_optimizer, "_MOST_AT_ONCE", most)
    own = params(4)
    optimizer = kind(
        [{"params": own[:1]}, {"params": own[1:3], "lr": 0.05, "weight_decay": 0.1}, {"params": own[3:], "lr": 0.0}],
        lr=0.01,
    )
    which = device(optimizer)
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        grads = [torch.randn(3, generator=generator) for _ in own]
        which.update(grads)
        for parameter, grad in zip(own, grads):
            parameter.grad = grad
        optimizer.step()
    for weight, parameter in zip(which.weights.values(), own):
        torch.testing.assert_close(weight, parameter.detach(), rtol=1e-6, atol=1e-6)
    assert torch.equal(which.weights["d"], torch.full((3,), 4.0))


def test_a_weight_in_no_group_trains_with_the_defaults() -> None:
    optimizer = torch.optim.SGD([{"params": params(2), "lr": 0.5}], lr=0.1)
    which = device(optimizer, {"a": 0, "b": None})
    which.update([torch.ones(3), torch.ones(3)])
    assert which.weights["a"].tolist() == pytest.approx([0.5] * 3)
    assert which.weights["b"].tolist() == pytest.approx([1.9] * 3)


@pytest.mark.parametrize("name", MAKERS)
def test_a_weight_without_gradient_is_left_alone_and_counts_no_update(name: str) -> None:
    """Updates missed now and then leave a weight where its own updates alone would have brought it."""
    which = device(MAKERS[name](params(2)))
    sometimes, always = device(MAKERS[name](params(2)[:1])), device(MAKERS[name](params(2)[1:]))
    for turn in range(9):
        grad = torch.full((3,), float(turn % 4) - 1.0)
        which.update([None if turn % 3 == 1 else grad, grad])
        always.update([grad])
        if turn % 3 != 1:
            sometimes.update([grad])
    torch.testing.assert_close(which.weights["a"], sometimes.weights["a"])
    torch.testing.assert_close(which.weights["b"], always.weights["a"])
    before = which.weights["a"].clone()
    which.update([None, None])
    assert torch.equal(which.weights["a"], before)


def test_weights_of_different_types_share_a_group() -> None:
    """Each is updated in the type it has."""
    own = [torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3).half())]
    which = device(optim.Adam(own, lr=1e-4))
    for _ in range(5):
        which.update([torch.ones(3), torch.ones(3).half()])
    assert which.weights["a"].tolist() == pytest.approx([1.0 - 5e-4] * 3, rel=1e-6)
    assert which.weights["b"].dtype == torch.float16
    # Steps of 1e-4 are lost in float16 around 1, whose neighbour below is 1 - 2**-11.
    assert which.weights["b"].tolist() == [1.0] * 3


def test_a_new_description_takes_effect_at_the_next_update() -> None:
    optimizer = torch.optim.SGD(params(1), lr=0.1)
    which = device(optimizer)
    which.update([torch.ones(3)])
    optimizer.param_groups[0]["lr"] = 0.01
    which.update([torch.ones(3)])
    which.set_description(describe(optimizer))
    which.update([torch.ones(3)])
    assert which.weights["a"].tolist() == pytest.approx([1.0 - 0.1 - 0.1 - 0.01] * 3)


# -- state ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MAKERS)
def test_state_has_one_entry_of_each_kind_for_each_weight(name: str) -> None:
    state, _ = device(MAKERS[name](params(2))).read_state()
    assert set(state) == {f"{kind}___{weight}" for kind in STATES[name] for weight in "ab"}
    assert all(tensor.shape == (() if key.startswith("Step") else (3,)) for key, tensor in state.items())


def test_state_that_the_maths_does_not_need_does_not_exist() -> None:
    assert device(optim.SGD(params(), 0.1)).read_state()[0] == {}
    assert device(optim.SGD(params(), 0.1)).state_bytes == 0
    assert set(device(optim.RMSprop(params(1))).read_state()[0]) == {"Accl1___a"}
    assert set(device(optim.RMSprop(params(1), momentum=0.0)).read_state()[0]) == {"Accl1___a", "Accl3___a"}


def test_state_bytes_count_the_types_of_the_moments() -> None:
    assert device(optim.Adam(params(2))).state_bytes == 2 * 2 * 3 * 4
    half = optim.Adam(params(2), first_order_momentum_accum_type=torch.float16)
    assert device(half).state_bytes == 2 * 3 * (2 + 4)


def test_moments_are_those_of_the_formulas() -> None:
    which = device(optim.Adam(params(1)))
    which.update([torch.tensor([1.0, 2.0, 0.0])])
    state, _ = which.read_state()
    torch.testing.assert_close(state["Accl1___a"], torch.tensor([0.1, 0.2, 0.0]))
    torch.testing.assert_close(state["Accl2___a"], torch.tensor([0.001, 0.004, 0.0]))
    assert state["Step___a"].item() == 1.0


def test_stored_velocities_carry_the_scaling() -> None:
    """The loss scaling in the separate variant, the velocity scaling in the combined one."""
    separate = device(optim.SGD(params(1), 0.1, 0.9, loss_scaling=8.0))
    separate.update([torch.ones(3)])
    assert separate.read_state()[0]["Accl1___a"].tolist() == [8.0] * 3
    combined = device(optim.SGD(params(1), 0.1, 0.5, loss_scaling=8.0, velocity_scaling=4.0, use_combined_accum=True))
    combined.update([torch.ones(3)])
    assert combined.read_state()[0]["Accl1___a"].tolist() == [2.0] * 3  # the next update's: already decayed by 0.5


@pytest.mark.parametrize("name", MAKERS)
def test_a_state_written_elsewhere_continues_the_run(name: str) -> None:
    """Weights and state moved to another device after 5 updates give the same weights after 10."""
    one = device(MAKERS[name](params()))
    steps(one, 5)
    two = device(MAKERS[name](params()))
    two.write_state(*one.read_state())
    for weight in one.weights:
        two.weights[weight].copy_(one.weights[weight])
    steps(one, 5, seed=1)
    steps(two, 5, seed=1)
    for weight in one.weights:
        assert torch.equal(one.weights[weight], two.weights[weight])


@pytest.mark.parametrize("name", MAKERS)
def test_a_state_written_back_rewinds_a_run(name: str) -> None:
    """The step counters go back with the moments."""
    which = device(MAKERS[name](params()))
    steps(which, 2)
    state, param = which.read_state()
    before = {weight: tensor.clone() for weight, tensor in which.weights.items()}
    steps(which, 3, seed=1)
    once = {weight: tensor.clone() for weight, tensor in which.weights.items()}
    which.write_state(state, param)
    for weight, tensor in before.items():
        which.weights[weight].copy_(tensor)
    steps(which, 3, seed=1)
    for weight, tensor in once.items():
        assert torch.equal(which.weights[weight], tensor)


def test_what_is_read_is_a_copy() -> None:
    which = device(MAKERS["adam"](params()))
    state, _ = which.read_state()
    steps(which, 1)
    assert state["Accl1___a"].tolist() == [0.0] * 3
    assert state["Step___a"].item() == 0.0


def test_missing_names_are_reported_and_keep_their_values(caplog: pytest.LogCaptureFixture) -> None:
    which = device(MAKERS["adam"](params(1)))
    steps(which, 3)
    state, param = which.read_state()
    kept = state.pop("Accl2___a")
    state["Accl1___a"] = torch.full((3,), 9.0)
    del param["learningRate___specific___a"]
    with caplog.at_level(logging.WARNING, "poptorch::python"):
        which.write_state(state, param)
    assert "lacks Accl2___a:" in caplog.messages[0] and "lacks learningRate___specific___a:" in caplog.messages[1]
    now, values = which.read_state()
    assert values["learningRate___specific___a"].item() == pytest.approx(0.1)
    assert torch.equal(now["Accl2___a"], kept)
    assert now["Accl1___a"].tolist() == [9.0] * 3


def test_a_state_without_hyper_parameters_is_complete(caplog: pytest.LogCaptureFixture) -> None:
    """Native optimizers have none to save; missing moments are still reported."""
    which = device(MAKERS["adam"](params(1)))
    state, _ = which.read_state()
    with caplog.at_level(logging.WARNING, "poptorch::python"):
        which.write_state(state, {})
        assert caplog.text == ""
        del state["Accl2___a"]
        which.write_state(state, {})
    assert "lacks Accl2___a: the device keeps its own" in caplog.text


def counted(name: str, count: float) -> Any:
    """Return a device's optimizer that has taken one update from a loaded count of steps."""
    which = device(MAKERS[name](params(1)))
    state, values = which.read_state()
    which.write_state({**state, "Step___a": torch.tensor(count)}, values)
    torch.testing.assert_close(which.read_state()[0]["Step___a"], torch.tensor(count), equal_nan=True)
    which.update([torch.full((3,), 0.5)])
    return which


@pytest.mark.parametrize("count", [-1.0, 0.3, -0.5, -3000.0, 1e30, math.inf, math.nan])
@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_any_count_of_steps_is_used_as_it_is(name: str, count: float) -> None:
    """A correction of 0, or below, changes the weights by the rules of float arithmetic."""
    first, second = (1 - torch.tensor(beta, dtype=torch.float64) ** (count + 1) for beta in (0.9, 0.999))
    start, gradient = torch.ones(3, dtype=torch.float64), torch.full((3,), 0.5, dtype=torch.float64)
    slope = gradient + 0.1 * start if name == "adam" else gradient
    move = 0.1 * slope / first / ((0.001 * slope**2 / second).sqrt() + 1e-8)
    expected = start - 0.1 * (move if name == "adam" else move + 0.01 * start)
    weight = counted(name, count).weights["a"].double()
    torch.testing.assert_close(weight, expected, rtol=1e-4, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("count", [-1.0, -3000.0, -math.inf, math.nan])
def test_no_count_of_steps_raises(count: float) -> None:
    assert counted("lamb", count).weights["a"].shape == counted("adam", count).weights["a"].shape == (3,)


def test_what_the_host_is_told_are_the_loaded_values_until_a_description_comes() -> None:
    optimizer = optim.Adam(params(1), lr=0.5, weight_decay=0.25)
    which = device(optimizer)
    state, values = which.read_state()
    which.write_state(state, {**values, "learningRate___specific___a": torch.tensor(7.0)})
    assert which.read_state()[1]["learningRate___specific___a"] == 7.0
    optimizer.param_groups[0]["lr"] = 0.125
    which.set_description(describe(optimizer))
    assert which.read_state()[1] == {"learningRate___specific___a": 0.125, "weightDecay___specific___a": 0.25}


def test_a_state_of_another_shape_is_refused_as_a_whole() -> None:
    which = device(MAKERS["adam"](params(1)))
    state, param = which.read_state()
    state["Accl1___a"] = torch.ones(3)
    state["Accl2___a"] = torch.ones(4)
    with pytest.raises(Error, match=r"Accl2___a to load has shape \(4,\), the device's \(3,\)"):
        which.write_state(state, param)
    assert which.read_state()[0]["Accl1___a"].tolist() == [0.0] * 3


def test_loading_a_state_leaves_hyper_parameters_to_the_description() -> None:
    which = device(optim.SGD(params(1), 0.1))
    state, param = which.read_state()
    param["scaledLearningRate0___specific___a"] = torch.tensor(99.0)
    which.write_state(state, param)
    which.update([torch.ones(3)])
    assert which.weights["a"].tolist() == pytest.approx([0.9] * 3)


# -- loss scaling ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["combined", "adam", "rmsprop", "lamb"])
def test_a_change_of_loss_scaling_leaves_alone_what_is_not_scaled_by_it(name: str) -> None:
    plain, changing = device(MAKERS[name](params())), device(MAKERS[name](params()))
    optimizer = MAKERS[name](params())
    for turn, scaling in enumerate([1.0, 2.0, 64.0, 0.5]):
        optimizer.loss_scaling = scaling
        changing.set_description(describe(optimizer))
        assert changing.loss_scaling == scaling
        steps(plain, 3, seed=turn)
        steps(changing, 3, seed=turn)
    for weight in plain.weights:
        torch.testing.assert_close(plain.weights[weight], changing.weights[weight], rtol=1e-6, atol=1e-6)


def test_a_velocity_is_not_rescaled_when_the_loss_scaling_changes() -> None:
    """It was stored times 4 and is read as if times 16: the velocity 1 counts as a quarter."""
    optimizer = optim.SGD(params(1), 1.0, 0.5, loss_scaling=4.0)
    which = device(optimizer)
    which.update([torch.ones(3)])
    optimizer.loss_scaling = 16.0
    which.set_description(describe(optimizer))
    assert which.read_state()[0]["Accl1___a"].tolist() == [4.0] * 3
    which.update([torch.ones(3)])
    assert which.weights["a"].tolist() == [1.0 - 1.0 - (0.5 * 0.25 + 1.0)] * 3


def test_a_factor_that_the_device_has_adapted_outlives_changes_of_the_description() -> None:
    optimizer = optim.SGD(params(1), 0.1, 0.9, loss_scaling=4.0)
    which = device(optimizer, adapts_loss_scaling=True)
    assert which.read_state()[0]["lossScaleUpdateFactor"] == 1.0
    which.adapt_loss_scaling(16.0)
    optimizer.loss_scaling = 2.0
    which.set_description(describe(optimizer))
    assert which.loss_scaling == 2.0 * 4.0
    state, values = which.read_state()
    assert state["lossScaleUpdateFactor"] == 4.0
    assert values["lossScaling_FLOAT"] == 2.0


# -- replicas -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MAKERS)
def test_weights_with_a_value_per_replica_group_train_as_weights_apart(name: str) -> None:
    """Dimension 0 of "a" counts groups: each slice ends where a weight of its own would, LAMB's norms included."""
    values = torch.tensor([[1.0, 2.0, 3.0], [-4.0, 0.5, 0.0]])
    together = device(MAKERS[name]([torch.nn.Parameter(values.clone())]), per_replica={"a": groups_of(2)})
    apart = device(MAKERS[name]([torch.nn.Parameter(value.clone()) for value in values]))
    generator = torch.Generator().manual_seed(0)
    for _ in range(10):
        grads = torch.randn(2, 3, generator=generator)
        together.update([grads])
        apart.update(list(grads))
    torch.testing.assert_close(together.weights["a"], torch.stack(list(apart.weights.values())))


def test_clipping_with_weights_that_differ_between_replicas_is_refused() -> None:
    with pytest.raises(Error, match=r"max_grad_norm=1\.0 cannot bound gradients while parameters differ"):
        device(optim.Adam(params(2), max_grad_norm=1.0), per_replica=["b"])


def test_float16_weights_are_stored_the_way_the_device_rounds() -> None:
    def floor(to: foreach.Tensors, values: foreach.Tensors) -> None:
        foreach.store_nearest(to, [value.floor() for value in values])

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.tensor([4.0]).half())], lr=0.1)
    which = device(optimizer, store=floor)
    which.update([torch.tensor([1.0]).half()])
    assert which.weights["a"].item() == 3.0
