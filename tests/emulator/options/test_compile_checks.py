"""Options that no model compiles with."""

from __future__ import annotations

from typing import Any, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignite_ipu.emulator.enums import CommGroupType, MeanReductionStrategy, OutputMode
from ignite_ipu.emulator.errors import Error
from ignite_ipu.emulator.options import Options
from ignite_ipu.emulator.options.compile_checks import check_at_compile


@pytest.mark.parametrize("training", [True, False])
def test_the_defaults_compile(training: bool) -> None:
    check_at_compile(Options(), training)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda o: o.deviceIterations(0), "deviceIterations must be greater than zero, and it is 0"),
        (lambda o: o.replicationFactor(-1), "replicationFactor must be greater than zero"),
        (lambda o: o.Training.gradientAccumulation(0), "gradientAccumulation must be greater than zero"),
        (lambda o: o.useOfflineIpuTarget(3), "Unknown IPU version 3"),
        (lambda o: o.setAvailableMemoryProportion({"IPU1": 1.5}), "proportion of IPU1 must be between 0 and 1"),
        (lambda o: o.setAvailableMemoryProportion({"IPU1": "all"}), "proportion of IPU1 must be between 0 and 1"),
        (lambda o: o.Distributed.configureProcessId(2, 2), "Process 2 of 2 cannot be"),
        (
            lambda o: o.replicationFactor(4).inputReplicaGrouping(4, CommGroupType.Consecutive).replicationFactor(2),
            "must be a factor of replicationFactor",
        ),
    ],
)
def test_each_of_these_passes_its_setter_and_fails_at_compile(change: Callable[[Options], Any], message: str) -> None:
    options = Options()
    change(options)
    with pytest.raises(Error, match=message) as caught:
        check_at_compile(options, training=True)
    assert caught.value.type == "poptorch_cpp_error"


def test_one_reduction_strategy_does_not_exist_in_the_back_end() -> None:
    options = Options()
    options.Training.setMeanAccumulationAndReplicationReductionStrategy(MeanReductionStrategy.PostAndLoss)
    check_at_compile(options, training=False)
    with pytest.raises(Error, match="MeanReductionStrategy out of range"):
        check_at_compile(options, training=True)


@given(iterations=st.integers(1, 40), period=st.integers(1, 50))
def test_a_return_period_fits_into_the_iterations(iterations: int, period: int) -> None:
    options = Options().deviceIterations(iterations).outputMode(OutputMode.EveryN, period)
    fits = [n * period for n in range(1, iterations + 1)]
    if iterations in fits:
        check_at_compile(options, training=False)
    else:
        message = "Return period must be <=" if period > iterations else "must be a factor of"
        with pytest.raises(Error, match=message):
            check_at_compile(options, training=False)


def test_a_period_left_over_from_another_mode_does_not_matter() -> None:
    check_at_compile(Options().outputMode(OutputMode.All, 7), training=False)
