"""`Options.Precision`."""

from __future__ import annotations

import pytest
import torch

from ignite_ipu.emulator.options import Options
from ignite_ipu.emulator.trace.autocasting import Policy


def test_floating_point_exceptions_take_a_bool() -> None:
    options = Options()
    options.Precision.enableFloatingPointExceptions(True)
    assert options._Popart._value("enableFloatingPointChecks") is True
    with pytest.raises(AssertionError, match="enableFloatingPointExceptions takes a bool, got 1"):
        options.Precision.enableFloatingPointExceptions(1)  # type: ignore[arg-type]


def test_partials_are_float_or_half() -> None:
    for dtype in (torch.bfloat16, torch.int32, "half", None):
        with pytest.raises(ValueError, match=r"should be either torch\.float or torch\.half"):
            Options().Precision.setPartialsType(dtype)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [1, None, "True"])
def test_the_deprecated_statistics_setting_still_checks_its_argument(value: object) -> None:
    with pytest.raises(ValueError, match="needs to be set to a bool"):
        Options().Precision.runningStatisticsAlwaysFloat(value)  # type: ignore[arg-type]


def test_each_use_of_a_deprecated_setting_warns(caplog: pytest.LogCaptureFixture) -> None:
    precision = Options().Precision
    for _ in range(3):
        precision.halfFloatCasting("anything")  # type: ignore[arg-type]
    assert len(caplog.records) == 3


def test_autocasting_is_on_with_its_own_policy_unless_said_otherwise() -> None:
    precision = Options().Precision
    assert precision.autocast_enabled is True and precision.autocast_policy is None
    assert precision.autocastEnabled(False).autocast_enabled is False


@pytest.mark.parametrize("value", [0, None, "no"])
def test_autocasting_is_switched_with_a_bool(value: object) -> None:
    with pytest.raises(ValueError, match="autocastEnabled needs to be set to a bool"):
        Options().Precision.autocastEnabled(value)  # type: ignore[arg-type]


def test_the_policy_of_autocasting_is_one_of_its_own() -> None:
    options, policy = Options(), Policy(fp16=["mm"])
    assert options.Precision.autocastPolicy(policy).autocast_policy is policy
    for other in (None, "mm", {"fp16": ["mm"]}):
        with pytest.raises(ValueError, match=r"autocastPolicy needs to be set to a poptorch\.autocasting\.Policy"):
            options.Precision.autocastPolicy(other)  # type: ignore[arg-type]
    options._freeze()
    with pytest.raises(AttributeError, match="frozen"):
        options.Precision.autocastPolicy(Policy())
