"""`Options.Training`."""

from __future__ import annotations

import pytest
import torch

from ignite_ipu.emulator.enums import MeanReductionStrategy, ReductionType
from ignite_ipu.emulator.options import Options


def test_defaults() -> None:
    training = Options().Training
    assert training.gradient_accumulation == 1
    assert training.accumulation_and_replication_reduction_type is ReductionType.Mean
    assert training.meanAccumulationAndReplicationReductionStrategy is MeanReductionStrategy.Post


@pytest.mark.parametrize("reduction", [ReductionType.NoReduction, 0, 1, "mean", None])
def test_gradients_are_summed_or_averaged_and_nothing_else(reduction: object) -> None:
    with pytest.raises(ValueError, match="must be set to"):
        Options().Training.accumulationAndReplicationReductionType(reduction)  # type: ignore[arg-type]


def test_the_mean_strategy_is_of_its_type_and_the_one_that_cannot_compile_passes() -> None:
    training = Options().Training
    with pytest.raises(AssertionError, match="Unexpected type"):
        training.setMeanAccumulationAndReplicationReductionStrategy(1)  # type: ignore[arg-type]
    training.setMeanAccumulationAndReplicationReductionStrategy(MeanReductionStrategy.PostAndLoss)


def test_accumulation_is_an_int_of_any_value() -> None:
    training = Options().Training
    with pytest.raises(AssertionError, match="Unexpected type"):
        training.gradientAccumulation(2.0)  # type: ignore[arg-type]
    assert training.gradientAccumulation(-1).gradient_accumulation == -1


def test_dithering_and_partials_overwrite_each_others_convolution_settings() -> None:
    options = Options()
    options.Precision.setPartialsType(torch.half)
    options.Training.setConvolutionDithering(True)
    assert options._Popart._value("convolutionOptions") == {"enableConvDithering": "true"}
    options.Precision.setPartialsType(torch.float)
    assert options._Popart._value("convolutionOptions") == {"partialsType": "float"}
    assert options._Popart._value("partialsTypeMatMuls") == "float"


def test_automatic_loss_scaling_is_a_back_end_setting() -> None:
    options = Options()
    options.Training.setAutomaticLossScaling(True)
    assert options._Popart._value("automaticLossScalingSettings.enabled") is True
