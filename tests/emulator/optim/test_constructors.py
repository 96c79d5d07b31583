"""Constructors of the five classes: signatures, defaults, marks, and refusals."""

from __future__ import annotations

import inspect
import logging
import math
from typing import Any, Dict, List, Set, Type

import pytest
import torch

from ignite_ipu.emulator import optim

CLASSES: List[Type[Any]] = [optim.SGD, optim.Adam, optim.AdamW, optim.RMSprop, optim.LAMB]
TYPES = ("accum_type", "first_order_momentum_accum_type", "second_order_momentum_accum_type")


def parameters() -> List[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.ones(2, 3)), torch.nn.Parameter(torch.ones(3))]


def made(kind: Type[Any], **arguments: Any) -> Any:
    if kind is optim.SGD:
        arguments.setdefault("lr", 0.1)
    return kind(parameters(), **arguments)


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (
            optim.SGD,
            "params lr momentum dampening weight_decay nesterov maximize foreach differentiable loss_scaling "
            "velocity_scaling use_combined_accum accum_type velocity_accum_type max_grad_norm",
        ),
        (
            optim.Adam,
            "params lr betas eps weight_decay amsgrad foreach maximize capturable differentiable fused loss_scaling "
            "accum_type first_order_momentum_accum_type second_order_momentum_accum_type max_grad_norm",
        ),
        (
            optim.AdamW,
            "params lr betas eps weight_decay amsgrad maximize foreach capturable differentiable fused loss_scaling "
            "bias_correction accum_type first_order_momentum_accum_type second_order_momentum_accum_type max_grad_norm",
        ),
        (
            optim.RMSprop,
            "params lr alpha eps weight_decay momentum centered foreach maximize differentiable loss_scaling "
            "accum_type first_order_momentum_accum_type second_order_momentum_accum_type use_tf_variant",
        ),
        (
            optim.LAMB,
            "params lr betas eps weight_decay bias_correction loss_scaling max_weight_norm accum_type "
            "first_order_momentum_accum_type second_order_momentum_accum_type",
        ),
    ],
)
def test_arguments_come_in_poptorch_order_and_default_to_none(kind: Type[Any], names: str) -> None:
    signature = inspect.signature(kind)
    assert " ".join(signature.parameters) == names
    required = {"params", "lr"} if kind is optim.SGD else {"params"}
    for name, parameter in signature.parameters.items():
        assert parameter.default is (inspect.Parameter.empty if name in required else None)


@pytest.mark.parametrize("kind", CLASSES)
def test_a_poptorch_optimizer_is_a_torch_optimizer(kind: Type[Any]) -> None:
    assert isinstance(made(kind), (optim.Optimizer, torch.optim.Optimizer))
    base = getattr(torch.optim, kind.__name__, torch.optim.Optimizer)
    assert kind.__bases__ == (optim.Optimizer, base)


@pytest.mark.parametrize("kind", CLASSES)
def test_arguments_left_out_take_torch_defaults(kind: Type[Any]) -> None:
    if kind is optim.LAMB:
        expected: Dict[str, Any] = {
            "lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2, "max_weight_norm": 65500.0,
            "bias_correction": True,
        }  # fmt: skip
    else:
        expected = getattr(torch.optim, kind.__name__)(
            parameters(), **({"lr": 0.1} if kind is optim.SGD else {})
        ).defaults
    optimizer = made(kind)
    assert optimizer.defaults == expected
    assert optimizer.loss_scaling == 1.0
    assert optimizer.accum_type is torch.float32
    if kind in (optim.SGD, optim.Adam, optim.AdamW):
        assert optimizer.max_grad_norm == math.inf


@pytest.mark.parametrize("kind", CLASSES)
def test_arguments_given_are_variable_and_the_others_constant(kind: Type[Any]) -> None:
    given: Dict[str, Any] = {"lr": 0.5, "weight_decay": 0.0, "loss_scaling": 2.0}
    optimizer = made(kind, **given)
    for name in (*optimizer.defaults, "loss_scaling"):
        assert optimizer.variable_attrs.isConstant(name) == (name not in given)


def test_the_learning_rate_is_constant_unless_given() -> None:
    assert optim.Adam(parameters()).variable_attrs.isConstant("lr")
    assert not optim.Adam(parameters(), lr=1e-3).variable_attrs.isConstant("lr")


@pytest.mark.parametrize(
    ("kind", "arguments", "allowed"),
    [
        (optim.SGD, {}, {"lr", "momentum", "dampening", "weight_decay", "nesterov", "loss_scaling"}),
        (optim.SGD, {"use_combined_accum": True}, {"lr", "velocity_scaling", "loss_scaling"}),
        (optim.Adam, {}, {"lr", "betas", "eps", "weight_decay", "loss_scaling"}),
        (optim.RMSprop, {}, {"lr", "alpha", "eps", "momentum", "weight_decay", "loss_scaling"}),
        (optim.LAMB, {}, {"lr", "betas", "eps", "weight_decay", "max_weight_norm", "loss_scaling"}),
    ],
)
def test_hyper_parameters_can_be_marked_and_structure_cannot(
    kind: Type[Any], arguments: Dict[str, Any], allowed: Set[str]
) -> None:
    marks = made(kind, **arguments).variable_attrs
    for name in allowed:
        marks.markAsVariable(name)
        assert not marks.isConstant(name)
    for name in ("accum_type", "max_grad_norm", "use_combined_accum", "bias_correction", "beta1"):
        with pytest.raises(AssertionError, match="Unknown attribute"):
            marks.markAsVariable(name)
    if not arguments:
        with pytest.raises(AssertionError, match="Unknown attribute"):
            marks.markAsVariable("velocity_scaling")


@pytest.mark.parametrize("kind", CLASSES)
def test_accumulation_types_are_float16_or_float32(kind: Type[Any]) -> None:
    names = ("accum_type", "velocity_accum_type") if kind is optim.SGD else TYPES
    for name in names:
        assert getattr(made(kind, **{name: torch.float16}), name) is torch.float16
        for wrong in (torch.bfloat16, torch.float64, "float16"):
            with pytest.raises(AssertionError, match="Accumulation types must be either"):
                made(kind, **{name: wrong})


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (optim.SGD, {"lr": -1.0}),
        (optim.SGD, {"nesterov": True}),
        (optim.SGD, {"nesterov": True, "momentum": 0.9, "dampening": 0.5}),
        (optim.Adam, {"eps": -1.0}),
        (optim.AdamW, {"betas": (1.0, 0.9)}),
        (optim.RMSprop, {"alpha": -0.1}),
    ],
)
def test_torch_checks_what_it_always_checks(kind: Type[Any], arguments: Dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"Invalid|Nesterov"):
        made(kind, **arguments)


def test_lamb_checks_no_ranges() -> None:
    optimizer = optim.LAMB(parameters(), lr=-1.0, betas=(2.0, 2.0), eps=-1.0)
    assert optimizer.param_groups[0]["lr"] == -1.0


def test_velocity_scaling_belongs_to_the_combined_variant(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "poptorch::python"):
        separate = optim.SGD(parameters(), lr=0.1, velocity_scaling=4.0)
    assert "velocity_scaling value ignored" in caplog.text
    assert "velocity_scaling" not in separate.param_groups[0]
    caplog.clear()
    combined = optim.SGD(
        [{"params": parameters()}, {"params": parameters(), "velocity_scaling": 8.0}],
        lr=0.1, velocity_scaling=4.0, use_combined_accum=True,
    )  # fmt: skip
    assert [group["velocity_scaling"] for group in combined.param_groups] == [4.0, 8.0]
    combined.add_param_group({"params": parameters()})
    assert combined.param_groups[2]["velocity_scaling"] == 4.0
    assert not combined.variable_attrs.isConstant("velocity_scaling")
    assert not caplog.records


def test_learning_rate_schedulers_accept_the_classes() -> None:
    optimizer = optim.AdamW(parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.05
