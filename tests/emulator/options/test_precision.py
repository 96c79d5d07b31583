"""`Options.Precision`."""

from __future__ import annotations

from typing import Any, Tuple

import pytest
import torch
from torch import nn

from ignite_ipu.emulator.enums import HalfFloatCastingBehavior
from ignite_ipu.emulator.executor.wrappers import inferenceModel
from ignite_ipu.emulator.options import Options
from ignite_ipu.emulator.trace.autocasting import Policy
from tests.half_precision import needs_half_precision


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


@needs_half_precision
@pytest.mark.parametrize(("layer", "shape"), [(nn.Linear(4, 2), (3, 4)), (nn.Conv1d(4, 2, 1), (3, 4, 5))])
def test_the_warning_of_half_float_casting_is_true(
    layer: nn.Module, shape: Tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever is asked for: products run in the type of their input, elementwise operands promote."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.scale = layer, nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor) -> Any:
            return self.layer(x), x * self.scale

    options = Options()
    options.Precision.halfFloatCasting(HalfFloatCastingBehavior.HalfUpcastToFloat)
    product, scaled = inferenceModel(Model(), options)(torch.randn(shape).half())
    assert (product.dtype, scaled.dtype) == (torch.float16, torch.float32)
    assert "Linear layers and convolutions run in the type of their input" in caplog.text
