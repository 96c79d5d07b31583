"""Warnings about attributes, classes and settings that the device ignores."""

from __future__ import annotations

import logging
import warnings
from typing import Any, List

import pytest
import torch

from ignite_ipu.emulator import optim
from ignite_ipu.emulator.optim.description import AttributeTracker, describe
from ignite_ipu.emulator.options import Options


def parameters() -> List[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.ones(2))]


class Look:
    """A tracker and its log messages."""

    def __init__(self, caplog: pytest.LogCaptureFixture, relaxed: bool = False) -> None:
        self._tracker = AttributeTracker(Options().relaxOptimizerAttributesChecks(relaxed))
        self._caplog = caplog
        caplog.set_level(logging.DEBUG, "poptorch::python")

    def at(self, optimizer: torch.optim.Optimizer) -> List[str]:
        self._caplog.clear()
        self._tracker.check(optimizer, describe(optimizer))
        return [f"{record.levelname}: {record.getMessage()}" for record in self._caplog.records]


def test_names_added_after_wrapping_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    look, optimizer = Look(caplog), torch.optim.SGD(parameters(), lr=0.1)
    optimizer.mine = 0  # type: ignore[attr-defined]
    assert look.at(optimizer) == []
    optimizer.yours = 1  # type: ignore[attr-defined]
    optimizer.param_groups[0]["clip"] = 2
    optimizer.defaults["grip"] = 3
    assert look.at(optimizer) == [
        "WARNING: Ignoring unexpected optimizer attribute in SGD2 optimizer: ['yours']",
        "WARNING: Ignoring unexpected group 0 attribute in SGD2 optimizer: ['clip']",
        "WARNING: Ignoring unexpected default group variable in SGD2 optimizer: ['grip']",
    ]
    assert look.at(optimizer) == []
    optimizer.others = 4  # type: ignore[attr-defined]
    assert look.at(optimizer) == [
        "WARNING: Ignoring unexpected optimizer attribute in SGD2 optimizer: ['others', 'yours']"
    ]


def test_relaxed_checks_report_at_debug_level(caplog: pytest.LogCaptureFixture) -> None:
    look, optimizer = Look(caplog, relaxed=True), optim.Adam(parameters())
    look.at(optimizer)
    optimizer.param_groups[0]["clip"] = 2
    assert look.at(optimizer) == ["DEBUG: Ignoring unexpected group 0 attribute in ADAM optimizer: ['clip']"]


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda p: optim.SGD(p, 0.1, use_combined_accum=True), "SGD1"),
        (lambda p: optim.SGD(p, 0.1), "SGD2"),
        (lambda p: torch.optim.Adam(p), "ADAM"),
        (lambda p: torch.optim.AdamW(p), "ADAMW"),
        (lambda p: optim.AdamW(p, bias_correction=False), "ADAMW_NO_BIAS"),
        (lambda p: torch.optim.RMSprop(p), "RMSPROP"),
        (lambda p: optim.RMSprop(p, centered=True), "RMSPROP_CENTERED"),
        (lambda p: optim.LAMB(p), "LAMB"),
        (lambda p: optim.LAMB(p, bias_correction=False), "LAMB_NO_BIAS"),
    ],
)
def test_reports_name_the_type_of_the_optimizer(caplog: pytest.LogCaptureFixture, make: Any, name: str) -> None:
    look, optimizer = Look(caplog), make(parameters())
    look.at(optimizer)
    optimizer.defaults["grip"] = 3
    (text,) = look.at(optimizer)
    assert f"in {name} optimizer: ['grip']" in text


def test_a_scheduler_made_after_wrapping_is_reported_harmlessly(caplog: pytest.LogCaptureFixture) -> None:
    look, optimizer = Look(caplog), optim.SGD(parameters(), 0.1)
    look.at(optimizer)
    with warnings.catch_warnings():
        # torch remarks that optimizer.step() was never called: on the IPU it never is.
        warnings.simplefilter("ignore")
        torch.optim.lr_scheduler.StepLR(optimizer, 1).step()
    said = "\n".join(look.at(optimizer))
    assert "initial_lr" in said
    assert "optimizer attribute in SGD2 optimizer" in said


def test_a_group_added_later_is_compared_with_the_others(caplog: pytest.LogCaptureFixture) -> None:
    look, optimizer = Look(caplog), torch.optim.SGD(parameters(), lr=0.1)
    look.at(optimizer)
    optimizer.add_param_group({"params": parameters(), "clip": 1})
    assert look.at(optimizer) == ["WARNING: Ignoring unexpected group 1 attribute in SGD2 optimizer: ['clip']"]


def test_attributes_that_are_read_are_never_unexpected(caplog: pytest.LogCaptureFixture) -> None:
    look, optimizer = Look(caplog), torch.optim.SGD(parameters(), lr=0.1)
    look.at(optimizer)
    optimizer.loss_scaling = 8.0  # type: ignore[attr-defined]
    assert describe(optimizer).loss_scaling.value == 8.0
    assert look.at(optimizer) == []


def test_subclasses_are_said_to_run_their_base(caplog: pytest.LogCaptureFixture) -> None:
    class Mine(torch.optim.Adam):
        pass

    look = Look(caplog)
    (text,) = look.at(Mine(parameters()))
    assert "Mine is subclassed from classes in" in text
    assert look.at(Mine(parameters())) == []


def test_settings_without_effect_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    (text,) = Look(caplog).at(torch.optim.SGD(parameters(), lr=0.1, maximize=True))
    assert "maximize=True has no effect" in text
    rmsprop = torch.optim.RMSprop(parameters())
    rmsprop.max_grad_norm = 1.0  # type: ignore[attr-defined]
    (text,) = Look(caplog).at(rmsprop)
    assert "max_grad_norm has no effect on a RMSPROP optimizer" in text
