"""Every torch optimizer is converted, mapped or refused on purpose, and the receipt lists the outcome."""

from __future__ import annotations

from typing import Any, Dict

import pytest
import torch
from torch import nn

from ignite_ipu import backend
from ignite_ipu.errors import OptimizerError
from ignite_ipu.optimizers.conversion import convert_optimizer

poptorch = backend.poptorch()


def parameters(count: int = 2) -> Any:
    return [nn.Parameter(torch.ones(3)) for _ in range(count)]


def in_two_directions(**arguments: Any) -> torch.optim.SGD:
    groups = [{"params": [each], "maximize": bool(number)} for number, each in enumerate(parameters())]
    return torch.optim.SGD(groups, lr=0.1, **arguments)


def sgd(**arguments: Any) -> torch.optim.SGD:
    return torch.optim.SGD(parameters(), **{"lr": 0.1, **arguments})


def groups_without_parameters(optimizer: Any, names: Any) -> Any:
    return [{name: group[name] for name in names} for group in optimizer.param_groups]


@pytest.mark.parametrize(
    ("source", "expected", "values"),
    [
        (
            torch.optim.SGD(parameters(), lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
            "SGD",
            {"lr": 0.1, "momentum": 0.9, "dampening": 0, "weight_decay": 0.01, "nesterov": True},
        ),
        (
            torch.optim.Adam(parameters(), lr=0.1, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.01),
            "Adam",
            {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.01},
        ),
        (
            torch.optim.AdamW(parameters()),
            "AdamW",
            {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2},
        ),
        (
            torch.optim.RMSprop(parameters(), lr=0.1, alpha=0.9, momentum=0.5, centered=True),
            "RMSprop",
            {"lr": 0.1, "alpha": 0.9, "eps": 1e-8, "weight_decay": 0, "momentum": 0.5, "centered": True},
        ),
    ],
    ids=["SGD", "Adam", "AdamW", "RMSprop"],
)
def test_every_value_arrives(source: Any, expected: str, values: Dict[str, Any]) -> None:
    """The class of the same name gets the same parameters and values."""
    conversion = convert_optimizer(source)
    device = conversion.optimizer
    assert type(device) is getattr(poptorch.optim, expected)
    assert groups_without_parameters(device, values) == [values]
    assert [p is q for p, q in zip(device.param_groups[0]["params"], source.param_groups[0]["params"])] == [True] * 2
    assert conversion.source is source and not conversion.passed_through


def test_every_group_keeps_its_values() -> None:
    """Any number of groups, each with values of its own."""
    first, second, third = parameters(3)
    source = torch.optim.AdamW(
        [{"params": [first], "lr": 1e-3}, {"params": [second, third], "weight_decay": 0.0, "betas": (0.5, 0.6)}], lr=1.0
    )
    device = convert_optimizer(source).optimizer
    assert [group["lr"] for group in device.param_groups] == [1e-3, 1.0]
    assert [group["weight_decay"] for group in device.param_groups] == [0.01, 0.0]
    assert [group["betas"] for group in device.param_groups] == [(0.9, 0.999), (0.5, 0.6)]
    assert [len(group["params"]) for group in device.param_groups] == [1, 2]


def test_numbers_that_are_not_zero_are_variable() -> None:
    """A scheduler may change them without any preparation; zeros cost memory or time if variable."""
    plain = convert_optimizer(sgd(lr=0.0))
    assert plain.variable == {"lr"}
    assert plain.constant == {"momentum", "dampening", "weight_decay", "loss_scaling"}
    assert convert_optimizer(sgd(momentum=0.9)).variable == {"lr", "momentum"}
    adam = convert_optimizer(torch.optim.Adam(parameters()))
    assert adam.variable == {"lr", "betas", "eps"}
    for conversion in (plain, adam):
        attributes = conversion.optimizer.variable_attrs
        assert {name for name in conversion.variable if attributes.isConstant(name)} == set()
        assert {name for name in conversion.constant if not attributes.isConstant(name)} == set()


def test_one_group_suffices_to_make_a_number_variable() -> None:
    """PopTorch keeps constness per optimizer, not per group."""
    first, second = parameters()
    source = torch.optim.SGD([{"params": [first]}, {"params": [second], "weight_decay": 0.1}], lr=0.1)
    assert "weight_decay" in convert_optimizer(source).variable


def test_variable_and_constant_can_be_said() -> None:
    """Both lists overrule the default."""
    conversion = convert_optimizer(
        torch.optim.Adam(parameters()), variable=["weight_decay", "loss_scaling"], constant=["betas", "eps"]
    )
    assert conversion.variable == {"lr", "weight_decay", "loss_scaling"}
    assert conversion.constant == {"betas", "eps"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"variable": ["momentun"]}, "SGD has no hyper-parameter 'momentun'. Did you mean 'momentum'"),
        ({"variable": ["nesterov"]}, "nesterov is part of the compiled update"),
        ({"variable": ["lr"], "constant": ["lr"]}, "lr cannot be variable and constant at once"),
        ({"variable": ["dampening"]}, "dampening cannot be variable"),
        ({"second_order_momentum_accum_type": torch.float16}, "does not apply to SGD.*velocity_accum_type"),
        ({"accum_type": torch.bfloat16}, "accum_type must be torch.float32 or torch.float16"),
        ({"max_grad_norm": 0.0}, r"max_grad_norm must be positive, got 0\.0"),
        ({"loss_scaling": float("nan")}, "loss_scaling of the optimizer is nan"),
    ],
)
def test_impossible_wishes(arguments: Any, message: str) -> None:
    """Each names a replacement."""
    with pytest.raises(OptimizerError, match=message):
        convert_optimizer(sgd(), **arguments)


def test_device_arguments() -> None:
    """Arguments of PopTorch's class alone are given here, or as attributes of the torch optimizer."""
    conversion = convert_optimizer(sgd(), max_grad_norm=1.0, accum_type=torch.float16, loss_scaling=128.0)
    device = conversion.optimizer
    assert (device.max_grad_norm, device.accum_type, device.loss_scaling) == (1.0, torch.float16, 128.0)
    assert "loss_scaling" in conversion.variable
    source = sgd()
    source.loss_scaling = 64.0  # type: ignore[attr-defined]
    assert convert_optimizer(source).optimizer.loss_scaling == 64.0
    source = sgd(momentum=0.9)
    source.max_grad_norm = 1.0  # type: ignore[attr-defined]
    with pytest.raises(OptimizerError, match=r"max_grad_norm=1.0: with momentum=0.9 an IPU's SGD clips the velocity"):
        convert_optimizer(source)
    with pytest.raises(OptimizerError, match="max_grad_norm does not apply to RMSprop"):
        convert_optimizer(torch.optim.RMSprop(parameters()), max_grad_norm=1.0)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (in_two_directions(), "maximize=.*: one loss is negated for all groups"),
        (sgd(momentum=0.9, dampening=0.1), "dampening=0.1: torch leaves the first velocity undamped"),
        (sgd(differentiable=True), "differentiable=True"),
        (torch.optim.Adam(parameters(), amsgrad=True), "amsgrad=True: .* amsgrad=False"),
    ],
    ids=["maximize", "dampening", "differentiable", "amsgrad"],
)
def test_attributes_that_would_train_something_else_are_refused(source: Any, message: str) -> None:
    """PopTorch ignores most of these without a word; the error carries the receipt."""
    with pytest.raises(OptimizerError, match=message) as caught:
        convert_optimizer(source)
    receipt = caught.value.receipt
    assert receipt is not None and receipt.attributes(fate="refused")


@pytest.mark.parametrize(
    ("source", "arguments", "refused"),
    [
        (sgd(momentum=0.9, dampening=0.1, foreach=True), {"loss_scaling": 8.0}, "dampening"),
        (in_two_directions(foreach=True), {"loss_scaling": 8.0}, "maximize"),
        (sgd(momentum=0.9, foreach=True), {"loss_scaling": 8.0, "max_grad_norm": 1.0}, "max_grad_norm"),
        (sgd(foreach=True), {"loss_scaling": 8.0, "second_order_momentum_accum_type": torch.float32}, "second_order"),
    ],
    ids=["dampening", "maximize", "clipping", "argument"],
)
def test_a_refusal_shows_the_whole_table(source: Any, arguments: Any, refused: str) -> None:
    """The refused attribute comes first, and once; the outcomes of all others follow."""
    with pytest.raises(OptimizerError) as caught:
        convert_optimizer(source, **arguments)
    receipt = caught.value.receipt
    assert receipt.rows[0].attribute.startswith(refused) and receipt.rows[0].fate == "refused"
    names = [row.attribute for row in receipt]
    assert len(set(names)) == len(names) and {"lr", "momentum", "weight_decay", "nesterov", "loss_scaling"} <= set(
        names
    )
    assert receipt["lr"].on_device == "variable" and receipt["foreach"].fate == "dropped"
    assert str(caught.value).endswith(f"\n{receipt}")


def test_what_a_schedule_will_change_becomes_variable() -> None:
    """On the device's optimizer and in the receipt; constant ones are refused."""
    conversion = convert_optimizer(sgd())
    assert "momentum" in conversion.constant
    scheduled = conversion.with_variable(["lr", "momentum"])
    assert "momentum" in scheduled.variable and not scheduled.optimizer.variable_attrs.isConstant("momentum")
    assert scheduled.receipt["momentum"].on_device == scheduled.receipt["schedule of momentum"].on_device == "variable"
    assert scheduled.with_variable(["momentum"]) is scheduled
    with pytest.raises(OptimizerError, match="dampening cannot be variable"):
        conversion.with_variable(["dampening"])
    with pytest.raises(OptimizerError, match="A schedule changes momentum, and gradients are clipped: with momentum"):
        convert_optimizer(sgd(), max_grad_norm=1.0).with_variable(["momentum"])


def test_an_attribute_of_any_group_counts() -> None:
    """differentiable of the second group alone is refused, too."""
    first, second = parameters()
    source = torch.optim.SGD([{"params": [first]}, {"params": [second], "differentiable": True}], lr=0.1)
    with pytest.raises(OptimizerError, match="differentiable"):
        convert_optimizer(source)


def test_maximize_is_mapped() -> None:
    """The device minimises the negated loss; PopTorch's own optimizers ignore the argument."""
    conversion = convert_optimizer(sgd(maximize=True))
    assert conversion.maximizes and conversion.receipt.attributes(fate="mapped") == ["maximize"]
    assert conversion.compiled_in()["its direction"] == "maximize"


def test_mixed_centered_groups_are_refused() -> None:
    """All groups share one RMSprop update."""
    first, second = parameters()
    source = torch.optim.RMSprop([{"params": [first]}, {"params": [second], "centered": True}])
    with pytest.raises(OptimizerError, match=r"centered=False \| True: it must be the same for all groups"):
        convert_optimizer(source)


def test_dampening_without_momentum_is_mapped_to_none() -> None:
    """torch ignores it then, PopTorch would not."""
    conversion = convert_optimizer(sgd(dampening=0.5))
    assert conversion.optimizer.param_groups[0]["dampening"] == 0
    assert conversion.receipt["dampening"].fate == "mapped"


def test_tensor_learning_rates_become_numbers() -> None:
    """PopTorch refuses tensors; the conversion warns."""
    source = torch.optim.Adam(parameters(), lr=torch.tensor(0.5))
    with pytest.warns(UserWarning, match=r"The optimizer's lr is a tensor; .* 0\.5"):
        conversion = convert_optimizer(source)
    assert conversion.optimizer.param_groups[0]["lr"] == 0.5
    assert conversion.receipt["lr"].value == "0.5 (tensor)"


@pytest.mark.parametrize("name", ["foreach", "capturable"])
def test_implementation_choices_are_dropped(name: str) -> None:
    """They change how torch computes, not what; the receipt mentions them."""
    conversion = convert_optimizer(torch.optim.Adam(parameters(), **{name: True}))
    assert conversion.receipt[name].fate == "dropped"
    assert not conversion.optimizer.param_groups[0].get(name)


@pytest.mark.skipif(
    "decoupled_weight_decay" not in torch.optim.Adam(parameters()).defaults, reason="this torch's Adam has no such flag"
)
def test_decoupled_adam_is_adamw() -> None:
    """The flag makes torch's Adam compute AdamW's update; groups must agree on it."""
    conversion = convert_optimizer(torch.optim.Adam(parameters(), weight_decay=0.1, decoupled_weight_decay=True))
    assert type(conversion.optimizer) is poptorch.optim.AdamW
    assert conversion.receipt["decoupled_weight_decay"].fate == "mapped"
    first, second = parameters()
    mixed = torch.optim.Adam([{"params": [first]}, {"params": [second], "decoupled_weight_decay": True}])
    with pytest.raises(OptimizerError, match="Some parameter groups"):
        convert_optimizer(mixed)


class Lamb(torch.optim.Optimizer):
    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    def step(self, closure: Any = None) -> None:
        pass


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (torch.optim.LBFGS, r"torch\.optim\.lbfgs\.LBFGS does not run on an IPU: it evaluates the loss several times"),
        (torch.optim.SparseAdam, "gradients are dense on an IPU"),
        (torch.optim.Adadelta, "PopTorch has no such update. Supported are SGD, Adam, AdamW and RMSprop"),
        (torch.optim.Adagrad, "no such update"),
        (torch.optim.NAdam, "no such update"),
        (torch.optim.Adamax, "no such update"),
        (torch.optim.ASGD, "no such update"),
        (torch.optim.Rprop, "no such update"),
        (Lamb, r"use poptorch\.optim\.LAMB"),
    ],
)
def test_other_optimizers_are_refused(make: Any, message: str) -> None:
    """With the reason, and with the supported ones."""
    with pytest.raises(OptimizerError, match=message):
        convert_optimizer(make(parameters()))


@pytest.mark.parametrize(
    ("make", "closest"),
    [
        (torch.optim.NAdam, "Adam"),
        (torch.optim.RAdam, "Adam"),
        (torch.optim.Adamax, "Adam"),
        (torch.optim.SparseAdam, "Adam"),
        (torch.optim.ASGD, "SGD"),
        (lambda params, lr: torch.optim.AdamW(params, lr, amsgrad=True), "AdamW"),
    ],
)
def test_substitutes_are_asked_for(make: Any, closest: str, caplog: pytest.LogCaptureFixture) -> None:
    """They are the user's optimizer from then on, with the entries that both have; the receipt is printed."""
    optimizer, name = make(parameters(), lr=0.02), type(make(parameters(), lr=0.1)).__name__
    with pytest.raises(OptimizerError):
        convert_optimizer(optimizer)
    conversion = convert_optimizer(optimizer, substitute="closest")
    assert type(conversion.optimizer).__name__ == type(optimizer).__name__ == closest
    assert conversion.source is optimizer and optimizer.param_groups[0]["lr"] == 0.02
    assert not optimizer.param_groups[0].get("amsgrad")
    row = conversion.receipt["amsgrad" if name == closest else "optimizer"]
    assert row.fate == "substituted" and row.note and str(conversion.receipt) in caplog.text
    if name != closest:
        with pytest.raises(OptimizerError, match=f'substitute="closest" trains by {closest} instead'):
            convert_optimizer(make(parameters(), lr=0.1))


def test_what_no_optimizer_is_close_to_stays_refused() -> None:
    """And so does one that has a state of its own; a supported optimizer gets no substitute."""
    with pytest.raises(OptimizerError, match="no such update"):
        convert_optimizer(torch.optim.Rprop(parameters()), substitute="closest")
    trained = torch.optim.RAdam(parameters())
    for parameter in trained.param_groups[0]["params"]:
        parameter.grad = torch.ones_like(parameter)
    trained.step()
    with pytest.raises(OptimizerError, match="RAdam has trained already"):
        convert_optimizer(trained, substitute="closest")
    assert not convert_optimizer(sgd(), substitute="closest").receipt.attributes(fate="substituted")
    with pytest.raises(OptimizerError, match="it must be None or"):
        convert_optimizer(sgd(), substitute="nearest")


def test_the_receipt_shows_what_schedulers_change() -> None:
    """Momentum that a schedule cycles is variable although it is zero now; a constant one is told."""
    optimizer = sgd(momentum=0.9)
    torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=10)
    receipt = convert_optimizer(optimizer, constant=("momentum",)).receipt
    assert receipt["schedule of lr"].on_device == "variable"
    assert receipt["schedule of momentum"].fate == "refused"
    assert not any("schedule" in row.attribute for row in convert_optimizer(sgd()).receipt)


def test_subclasses() -> None:
    """A subclass that only sets values is converted; one with a step of its own is refused, for it would never run."""

    class Preset(torch.optim.Adam):
        def __init__(self, params: Any) -> None:
            super().__init__(params, lr=0.5)

    class OwnStep(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    assert convert_optimizer(Preset(parameters())).optimizer.param_groups[0]["lr"] == 0.5
    with pytest.raises(OptimizerError, match=r"OwnStep overrides step\(\) of torch\.optim\.SGD"):
        convert_optimizer(OwnStep(parameters(), lr=0.1))


def test_accelerates_wrapper_is_unwrapped() -> None:
    """PopTorch does not know it; the optimizer inside counts."""

    class AcceleratedOptimizer(torch.optim.Optimizer):
        def __init__(self, optimizer: Any) -> None:
            self.optimizer = optimizer

    inner = sgd()
    assert convert_optimizer(AcceleratedOptimizer(inner)).source is inner


def test_other_objects_are_no_optimizers() -> None:
    """A list of parameters is refused by its type."""
    with pytest.raises(TypeError, match="The optimizer is a list"):
        convert_optimizer(parameters())


def test_poptorch_optimizers_pass_through() -> None:
    """PopTorch's own are used as they are; explicitly passed arguments are variable, by its rule."""
    own = poptorch.optim.LAMB(parameters(), lr=0.1)
    conversion = convert_optimizer(own, variable=["weight_decay"])
    assert conversion.optimizer is own and conversion.passed_through and conversion.kind.name == "LAMB"
    assert conversion.variable == {"lr", "weight_decay"} and "max_weight_norm" in conversion.constant
    with pytest.raises(OptimizerError, match=r"max_grad_norm cannot be given .* poptorch\.optim\.SGD\(\.\.\.\)"):
        convert_optimizer(poptorch.optim.SGD(parameters(), lr=0.1), max_grad_norm=1.0)
    with pytest.raises(OptimizerError, match="maximize"):
        convert_optimizer(poptorch.optim.SGD(parameters(), lr=0.1, maximize=True))


def test_the_receipt_reads_as_a_table() -> None:
    """One line per attribute: its value in each group, its fate, its role on the device, and why."""
    first, second = parameters()
    source = torch.optim.SGD([{"params": [first]}, {"params": [second], "lr": 0.2}], lr=0.1, foreach=True)
    lines = str(convert_optimizer(source, max_grad_norm=2.0).receipt).splitlines()
    assert lines[0] == "SGD -> poptorch.optim.SGD (parameter groups: 2, parameters: 2)"
    assert lines[1].split() == ["attribute", "value", "fate", "on", "device", "note"]
    cells = [line.split()[0] for line in lines[2:]]
    assert cells == ["lr", "momentum", "dampening", "weight_decay", "nesterov", "max_grad_norm", "foreach"]
    assert lines[2].split() == ["lr", "0.1", "|", "0.2", "kept", "variable"]
    assert "constant" in lines[5] and "variable=('weight_decay',)" in lines[5]
    assert "dropped" in lines[8]


def test_row_lookup() -> None:
    """Rows are found by attribute and counted by fate and role."""
    receipt = convert_optimizer(sgd(foreach=True)).receipt
    assert receipt.attributes(fate="dropped") == ["foreach"]
    assert receipt.attributes(on_device="variable") == ["lr"]
    assert next(iter(receipt)).attribute == "lr"
    with pytest.raises(KeyError):
        receipt["beta"]
