"""Attributes read from an optimizer, the constant ones, and the changes that a compiled program takes."""

from __future__ import annotations

import math
import re
from typing import Any, Callable, Dict, List, Optional, Type

import pytest
import torch

from ignite_ipu.emulator import optim
from ignite_ipu.emulator.enums import MeanReductionStrategy
from ignite_ipu.emulator.errors import Error
from ignite_ipu.emulator.optim.description import OptimizerDescription, UpdateRule, describe

Edit = Callable[[Any], None]


def parameters() -> List[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.ones(2))]


def groups(**values: Any) -> List[Dict[str, Any]]:
    return [{"params": parameters()}, {"params": parameters(), **values}]


def test_equal_optimizers_have_equal_descriptions_and_hashes() -> None:
    one, other = (describe(optim.SGD(parameters(), lr=0.1, momentum=0.9)) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    assert one != describe(optim.SGD(parameters(), lr=0.2, momentum=0.9))


def test_groups_override_defaults_and_defaults_are_kept_for_weights_in_no_group() -> None:
    description = describe(torch.optim.Adam(groups(lr=0.5, betas=(0.1, 0.2)), lr=0.1))
    assert [values["lr"] for values in description.groups] == [0.1, 0.5]
    assert (description.groups[1]["beta1"], description.groups[1]["beta2"]) == (0.1, 0.2)
    assert description.values(None)["lr"] == 0.1
    assert description.values(1)["lr"] == 0.5


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), UpdateRule.SGD2),
        (lambda p: optim.SGD(p, lr=0.1, use_combined_accum=True), UpdateRule.SGD1),
        (lambda p: torch.optim.Adam(p), UpdateRule.ADAM),
        (lambda p: optim.Adam(p), UpdateRule.ADAM),
        (lambda p: torch.optim.AdamW(p), UpdateRule.ADAMW),
        (lambda p: optim.AdamW(p), UpdateRule.ADAMW),
        (lambda p: optim.AdamW(p, bias_correction=False), UpdateRule.ADAMW_NO_BIAS),
        (lambda p: torch.optim.RMSprop(p), UpdateRule.RMSPROP),
        (lambda p: optim.RMSprop(p, centered=True), UpdateRule.RMSPROP_CENTERED),
        (lambda p: optim.LAMB(p), UpdateRule.LAMB),
        (lambda p: optim.LAMB(p, bias_correction=False), UpdateRule.LAMB_NO_BIAS),
    ],
)
def test_kinds(make: Any, kind: UpdateRule) -> None:
    assert describe(make(parameters())).kind is kind


# -- constant and variable ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "name", "constant"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), "lr", False),
        (lambda p: torch.optim.SGD(p, lr=0.0), "lr", False),
        (lambda p: torch.optim.SGD(p, lr=0.1), "momentum", True),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), "momentum", False),
        (lambda p: torch.optim.SGD(p, lr=0.1), "dampening", True),
        (lambda p: torch.optim.SGD(p, lr=0.1, dampening=0.5), "dampening", False),
        (lambda p: torch.optim.SGD(p, lr=0.1), "weight_decay", True),
        (lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.01), "weight_decay", False),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True), "nesterov", True),
        (lambda p: torch.optim.Adam(p), "lr", False),
        (lambda p: torch.optim.Adam(p, betas=(0.5, 0.6)), "beta1", True),
        (lambda p: torch.optim.Adam(p, betas=(0.5, 0.6)), "beta2", True),
        (lambda p: torch.optim.Adam(p), "eps", True),
        (lambda p: torch.optim.Adam(p, eps=1e-7), "eps", False),
        (lambda p: torch.optim.Adam(p), "weight_decay", True),
        (lambda p: torch.optim.Adam(p, weight_decay=0.01), "weight_decay", False),
        (lambda p: torch.optim.AdamW(p), "weight_decay", True),
        (lambda p: torch.optim.AdamW(p, weight_decay=0.0), "weight_decay", False),
        (lambda p: torch.optim.RMSprop(p, alpha=0.5), "alpha", True),
        (lambda p: torch.optim.RMSprop(p, momentum=0.5), "momentum", False),
        # poptorch.optim: given explicitly or not, whatever the value.
        (lambda p: optim.SGD(p, lr=0.1), "lr", False),
        (lambda p: optim.SGD(p, lr=0.1), "momentum", True),
        (lambda p: optim.SGD(p, lr=0.1, momentum=0.0), "momentum", False),
        (lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True), "nesterov", False),
        (lambda p: optim.SGD(p, lr=0.1, velocity_scaling=2.0, use_combined_accum=True), "velocity_scaling", False),
        (lambda p: optim.SGD(p, lr=0.1, use_combined_accum=True), "velocity_scaling", True),
        (lambda p: optim.Adam(p), "lr", True),
        (lambda p: optim.Adam(p, lr=1e-3), "lr", False),
        (lambda p: optim.Adam(p, betas=(0.9, 0.999)), "beta1", False),
        (lambda p: optim.Adam(p, betas=(0.9, 0.999)), "beta2", False),
        (lambda p: optim.AdamW(p, weight_decay=0.5), "weight_decay", False),
        (lambda p: optim.RMSprop(p, alpha=0.99), "alpha", False),
        (lambda p: optim.LAMB(p), "max_weight_norm", True),
        (lambda p: optim.LAMB(p, max_weight_norm=1.0), "max_weight_norm", False),
    ],
)
def test_constant_and_variable_values(make: Any, name: str, constant: bool) -> None:
    description = describe(make(parameters()))
    assert description.groups[0].get(name).constant is constant
    assert description.defaults.get(name).constant is constant


def test_marks_decide_over_the_constructor() -> None:
    optimizer = optim.Adam(parameters(), lr=0.1)
    optimizer.variable_attrs.markAsConstant("lr")
    optimizer.variable_attrs.markAsVariable("betas")
    values = describe(optimizer).groups[0]
    assert values.get("lr").constant
    assert not values.get("beta1").constant and not values.get("beta2").constant


@pytest.mark.parametrize(
    ("scaling", "automatic", "constant"), [(None, False, True), (1.0, False, False), (None, True, False)]
)
def test_loss_scaling_of_a_poptorch_optimizer(scaling: Optional[float], automatic: bool, constant: bool) -> None:
    found = describe(optim.Adam(parameters(), loss_scaling=scaling), automatic).loss_scaling
    assert (found.value, found.constant) == (1.0, constant)


@pytest.mark.parametrize(
    ("scaling", "automatic", "constant"), [(1.0, False, True), (2.0, False, False), (1.0, True, False)]
)
def test_loss_scaling_of_a_torch_optimizer(scaling: float, automatic: bool, constant: bool) -> None:
    optimizer = torch.optim.Adam(parameters())
    optimizer.loss_scaling = scaling  # type: ignore[attr-defined]
    found = describe(optimizer, automatic).loss_scaling
    assert (found.value, found.constant) == (scaling, constant)


def test_extras_are_read_from_attributes_of_a_torch_optimizer() -> None:
    sgd: Any = torch.optim.SGD(parameters(), lr=0.1)
    sgd.use_combined_accum, sgd.velocity_scaling, sgd.max_grad_norm = True, 4.0, 2.0
    description = describe(sgd)
    assert description.kind is UpdateRule.SGD1
    assert description.max_grad_norm == 2.0
    assert description.groups[0].get("velocity_scaling").value == 4.0
    assert not description.groups[0].get("velocity_scaling").constant
    adam: Any = torch.optim.Adam(parameters())
    adam.accum_type = adam.first_order_momentum_accum_type = torch.float16
    description = describe(adam)
    assert description.accum_type is torch.float16
    assert description.moment_types == (torch.float16, torch.float32)
    rmsprop: Any = torch.optim.RMSprop(parameters())
    rmsprop.use_tf_variant = True
    assert describe(rmsprop).use_tf_variant


def test_the_combined_variant_ignores_accumulation_types() -> None:
    types: Dict[str, Any] = {"accum_type": torch.float16, "velocity_accum_type": torch.float16}
    combined = describe(optim.SGD(parameters(), lr=0.1, use_combined_accum=True, **types))
    separate = describe(optim.SGD(parameters(), lr=0.1, **types))
    assert combined.accum_type is torch.float32 and combined.moment_types[0] is torch.float32
    assert separate.accum_type is torch.float16 and separate.moment_types[0] is torch.float16


# -- refused when set -----------------------------------------------------------------------------------------------


class Rogue(torch.optim.Optimizer):
    def __init__(self) -> None:
        super().__init__(parameters(), {"lr": 0.1})


def test_other_types_are_refused() -> None:
    for optimizer in (torch.optim.Adadelta(parameters()), Rogue(), torch.optim.SGD, 3):
        with pytest.raises(AssertionError, match="Unsupported optimizer type"):
            describe(optimizer)


@pytest.mark.parametrize("module", [torch.optim, optim])
@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_amsgrad_is_refused_in_defaults_and_groups(module: Any, name: str) -> None:
    kind: Type[Any] = getattr(module, name)
    for optimizer in (kind(parameters(), amsgrad=True), kind(groups(amsgrad=True))):
        with pytest.raises(ValueError, match="Only non-amsgrad"):
            describe(optimizer)


def test_an_adam_with_decoupled_weight_decay_is_refused() -> None:
    """Recent torch makes AdamW of Adam by a flag that PopTorch would not see."""
    optimizer = torch.optim.Adam(parameters())
    optimizer.param_groups[0]["decoupled_weight_decay"] = True
    with pytest.raises(ValueError, match="use AdamW"):
        describe(optimizer)


def test_groups_must_agree_on_centered() -> None:
    with pytest.raises(AssertionError, match="must have the same value for the 'centered'"):
        describe(torch.optim.RMSprop(groups(centered=True)))


def test_lamb_has_one_bias_correction() -> None:
    with pytest.raises(AssertionError, match="must have the same value for the 'bias_correction'"):
        describe(optim.LAMB(groups(bias_correction=False)))
    optimizer = optim.LAMB(parameters())
    optimizer.bias_correction = False
    with pytest.raises(AssertionError, match="must have the same value for the 'bias_correction'"):
        describe(optimizer)


@pytest.mark.parametrize("value", [torch.tensor(0.1), "0.1", None])
@pytest.mark.parametrize("name", ["lr", "weight_decay", "momentum"])
def test_values_must_be_numbers(name: str, value: Any) -> None:
    optimizer = torch.optim.SGD(parameters(), lr=0.1)
    optimizer.param_groups[0][name] = value
    with pytest.raises(AssertionError, match=f"Expected a number for {name}"):
        describe(optimizer)


def test_a_learning_rate_in_a_tensor_is_refused() -> None:
    with pytest.raises(AssertionError, match="Expected a number for lr"):
        describe(torch.optim.SGD(parameters(), lr=torch.tensor(0.1), foreach=False))


def test_loss_scaling_must_be_a_number() -> None:
    with pytest.raises(AssertionError, match="Expected a number for loss_scaling"):
        describe(optim.SGD(parameters(), lr=0.1, loss_scaling="8"))  # type: ignore[arg-type]


@pytest.mark.parametrize("betas", [[0.9, 0.999], (0.9,), (0.9, 0.99, 0.999), 0.9])
def test_betas_must_be_a_pair(betas: Any) -> None:
    optimizer = torch.optim.Adam(parameters())
    optimizer.param_groups[0]["betas"] = betas
    with pytest.raises(AssertionError, match="Expected a pair for betas"):
        describe(optimizer)


def test_betas_must_be_numbers() -> None:
    optimizer = torch.optim.Adam(parameters())
    optimizer.param_groups[0]["betas"] = (0.9, torch.tensor(0.9))
    with pytest.raises(AssertionError, match="Expected a number for betas"):
        describe(optimizer)


@pytest.mark.parametrize(
    ("kind", "name"),
    [(torch.optim.SGD, "lr"), (torch.optim.Adam, "betas"), (torch.optim.RMSprop, "centered"), (optim.LAMB, "eps")],
)
def test_values_of_a_group_are_mandatory(kind: Type[Any], name: str) -> None:
    optimizer = kind(parameters(), lr=0.1)
    del optimizer.param_groups[0][name]
    with pytest.raises(AssertionError, match=f"Mandatory attribute '{name}'"):
        describe(optimizer)


@pytest.mark.parametrize("wrong", [torch.bfloat16, torch.float64, "float16"])
def test_accumulation_types_of_a_torch_optimizer_are_checked(wrong: Any) -> None:
    for kind, name in ((torch.optim.SGD, "velocity_accum_type"), (torch.optim.Adam, "accum_type")):
        optimizer = kind(parameters(), lr=0.1)
        setattr(optimizer, name, wrong)
        with pytest.raises(ValueError, match="must be set to either"):
            describe(optimizer)


@pytest.mark.parametrize("strategy", list(MeanReductionStrategy))
def test_float16_accumulators_need_a_running_mean(strategy: MeanReductionStrategy) -> None:
    describe(optim.Adam(parameters())).check_strategy(strategy)
    half = describe(optim.Adam(parameters(), accum_type=torch.float16))
    if strategy is MeanReductionStrategy.Running:
        half.check_strategy(strategy)
    else:
        with pytest.raises(ValueError, match="Invalid optimizer: the new optimizer would"):
            half.check_strategy(strategy)


# -- refused by the back end ----------------------------------------------------------------------------------------


def edited(optimizer: Any, **values: Any) -> OptimizerDescription:
    optimizer.param_groups[0].update(values)
    return describe(optimizer)


@pytest.mark.parametrize(
    ("description", "words"),
    [
        (
            lambda: describe(optim.Adam([{"params": parameters(), "lr": 0.0}])),
            "Constant, zero learning rate in group 0",
        ),
        (lambda: edited(torch.optim.SGD(parameters(), lr=0.1), lr=-1.0), "Negative lr"),
        (lambda: edited(torch.optim.SGD(parameters(), lr=0.1), momentum=-1.0), "Negative momentum"),
        (lambda: edited(torch.optim.SGD(parameters(), lr=0.1), dampening=-1.0), "Negative dampening"),
        (lambda: edited(torch.optim.Adam(parameters()), weight_decay=-1.0), "Negative weight_decay"),
        (lambda: describe(optim.LAMB(parameters(), eps=-1.0)), "Negative eps"),
        (lambda: describe(optim.Adam(parameters(), loss_scaling=0.0)), "Loss scaling cannot be 0"),
        (lambda: describe(optim.Adam(parameters(), max_grad_norm=math.nan)), "cannot be NaN"),
    ],
)
def test_the_back_end_refuses(description: Callable[[], OptimizerDescription], words: str) -> None:
    with pytest.raises(Error, match=words) as caught:
        description().check_backend()
    assert caught.value.type == "poptorch_cpp_error"


def test_the_back_end_takes_a_variable_zero_learning_rate_and_a_negative_loss_scaling() -> None:
    describe(torch.optim.SGD(parameters(), lr=0.0)).check_backend()
    describe(optim.Adam(parameters(), lr=0.0)).check_backend()
    describe(optim.Adam(parameters(), loss_scaling=-1.0)).check_backend()


# -- replacement ----------------------------------------------------------------------------------------------------

MATCH = "Values are constant but do not match"
TO_VARIABLE = "Can not replace a constant value with a non constant"
TO_CONSTANT = "Can not replace a non constant value with a constant"


def group(**values: Any) -> Edit:
    return lambda optimizer: optimizer.param_groups[0].update(values)


def attribute(**values: Any) -> Edit:
    return lambda optimizer: [setattr(optimizer, name, value) for name, value in values.items()] and None


@pytest.mark.parametrize(
    ("make", "edit", "words"),
    [
        # Variable values change freely.
        (lambda p: torch.optim.SGD(p, lr=0.1), group(lr=0.5), None),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), group(momentum=0.8), None),
        (lambda p: torch.optim.AdamW(p, weight_decay=0.1), group(weight_decay=0.2), None),
        (lambda p: optim.Adam(p, lr=0.1, betas=(0.9, 0.99)), group(lr=0.5, betas=(0.5, 0.6)), None),
        (lambda p: optim.SGD(p, lr=0.1, loss_scaling=1.0), attribute(loss_scaling=128.0), None),
        # Constants do not.
        (lambda p: optim.Adam(p), group(lr=0.5), MATCH),
        (lambda p: optim.Adam(p, lr=0.1), group(betas=(0.5, 0.6)), MATCH),
        (lambda p: torch.optim.Adam(p), group(betas=(0.5, 0.999)), MATCH),
        (lambda p: torch.optim.RMSprop(p), group(alpha=0.5), MATCH),
        (lambda p: optim.SGD(p, lr=0.1), attribute(loss_scaling=2.0), MATCH),
        # A torch optimizer's value changes sides.
        (lambda p: torch.optim.SGD(p, lr=0.1), group(momentum=0.9), TO_VARIABLE),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), group(momentum=0.0), TO_CONSTANT),
        (lambda p: torch.optim.Adam(p, weight_decay=0.1), group(weight_decay=0.0), TO_CONSTANT),
        (lambda p: torch.optim.AdamW(p), group(weight_decay=0.5), TO_VARIABLE),
        (lambda p: torch.optim.SGD(p, lr=0.1), attribute(loss_scaling=2.0), TO_VARIABLE),
        # A mark changes sides.
        (lambda p: optim.Adam(p, lr=0.1), lambda o: o.variable_attrs.markAsConstant("lr"), TO_CONSTANT),
        (lambda p: optim.Adam(p), lambda o: o.variable_attrs.markAsVariable("lr"), TO_VARIABLE),
        # Structure is compiled in.
        (lambda p: optim.Adam(p), attribute(max_grad_norm=1.0), "max_grad_norm was compiled as inf"),
        (lambda p: optim.Adam(p, max_grad_norm=2.0), attribute(max_grad_norm=1.0), "max_grad_norm"),
        (lambda p: optim.Adam(p), attribute(accum_type=torch.float16), "accum_type"),
        (lambda p: optim.Adam(p), attribute(first_order_momentum_accum_type=torch.float16), "first-order state"),
        (lambda p: optim.Adam(p), attribute(second_order_momentum_accum_type=torch.float16), "second-order state"),
        (lambda p: optim.AdamW(p), attribute(bias_correction=False), "ADAMW and cannot become ADAMW_NO_BIAS"),
        (lambda p: optim.SGD(p, lr=0.1), attribute(use_combined_accum=True), "SGD2 and cannot become SGD1"),
        (lambda p: optim.RMSprop(p), group(centered=True), "RMSPROP and cannot become RMSPROP_CENTERED"),
        (lambda p: optim.RMSprop(p), attribute(use_tf_variant=True), "use_tf_variant"),
        (lambda p: torch.optim.SGD(p, lr=0.1), lambda o: o.add_param_group({"params": parameters()}), "groups"),
    ],
)
def test_replacement(make: Any, edit: Edit, words: Optional[str]) -> None:
    """Edits to a compiled optimizer are taken or refused by the kind of value edited."""
    optimizer = make(parameters())
    compiled = describe(optimizer)
    edit(optimizer)
    new = describe(optimizer)
    assert new != compiled
    if words is None:
        compiled.check_replacement(new)
        assert compiled.compiled_in == new.compiled_in
        return
    with pytest.raises(Error, match="is not a valid replacement") as caught:
        compiled.check_replacement(new)
    assert re.search(words, str(caught.value))
    assert caught.value.type == "poptorch_cpp_error"
    assert compiled.compiled_in != new.compiled_in


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), lambda p: torch.optim.Adam(p)),
        (lambda p: torch.optim.Adam(p), lambda p: torch.optim.AdamW(p)),
        (lambda p: optim.LAMB(p), lambda p: optim.AdamW(p)),
    ],
)
def test_an_optimizer_of_another_type_is_no_replacement(first: Any, second: Any) -> None:
    with pytest.raises(Error, match="is not a valid replacement"):
        describe(first(parameters())).check_replacement(describe(second(parameters())))


def test_values_of_the_defaults_are_compiled_too() -> None:
    """They are the values of weights in no group."""
    optimizer = optim.Adam(parameters())
    compiled = describe(optimizer)
    optimizer.defaults["lr"] = 0.5
    with pytest.raises(Error, match=r"lr of the defaults was compiled in as 0\.001 and cannot become 0\.5"):
        compiled.check_replacement(describe(optimizer))
