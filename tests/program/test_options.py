"""One description of a run becomes training and evaluation options that agree with each other and with the loaders."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ignite_ipu import IPUConfig, backend
from ignite_ipu.errors import OptionsError
from ignite_ipu.program.options import check_ipus, evaluation_options, output_mode, training_options

poptorch = backend.poptorch()


def is_frozen(options: Any) -> bool:
    """Return whether PopTorch refuses to set an option a second time."""
    try:
        options.deviceIterations(options.device_iterations)
    except AttributeError:
        return True
    return False


def frozen(options: Any) -> Any:
    """Freeze options as a user does: by making a loader with them."""
    poptorch.DataLoader(options, [torch.zeros(1)] * 64)
    assert is_frozen(options)
    return options


def test_arguments_become_options() -> None:
    """Every argument arrives where PopTorch reads it, and all outputs come back unless said otherwise."""
    options = training_options(
        IPUConfig(device_iterations=4, gradient_accumulation_steps=8, replication_factor=2, seed=7)
    )
    assert options.device_iterations == 4
    assert options.Training.gradient_accumulation == 8
    assert options.replication_factor == 2
    assert options.random_seed == 7
    assert output_mode(options, training=True) is poptorch.OutputMode.All


def test_the_users_object_stays_as_it_is() -> None:
    """One object may describe several models; further settings of a model are in its own copy."""
    mine = poptorch.Options().deviceIterations(2)
    options = training_options(IPUConfig(options=mine, gradient_accumulation_steps=4, output_mode="Final", seed=3))
    assert (mine.device_iterations, mine.Training.gradient_accumulation) == (2, 1)
    assert mine.defaultOutputMode() and not mine.exists("random_seed")
    evaluation_options(IPUConfig(options=mine, replication_factor=2))
    assert mine.replication_factor == 1
    assert poptorch.DataLoader(options, [torch.zeros(1)] * 64, batch_size=2).combinedBatchSize == 16


def test_contradictions_are_refused() -> None:
    """The same thing said twice with different values is an error, not a guess."""
    with pytest.raises(OptionsError, match=r"deviceIterations is 2 in the options but the arguments say 4"):
        training_options(IPUConfig(options=poptorch.Options().deviceIterations(2), device_iterations=4))


def test_frozen_options_are_completed() -> None:
    """Options that a loader was made with can describe a model with more in it."""
    options = training_options(
        IPUConfig(options=frozen(poptorch.Options().deviceIterations(2)), gradient_accumulation_steps=4)
    )
    assert not is_frozen(options)
    assert (options.device_iterations, options.Training.gradient_accumulation) == (2, 4)


def test_options_changed_after_use_say_so() -> None:
    """PopTorch's own error tells about a late change."""
    options = frozen(training_options())
    with pytest.raises(AttributeError, match="frozen"):
        options.deviceIterations(2)


def test_evaluation_is_derived_from_training() -> None:
    """Nothing is accumulated, everything is returned, and a call consumes as much as a training call."""
    training = training_options(
        IPUConfig(device_iterations=2, gradient_accumulation_steps=8, replication_factor=2, output_mode="Final")
    )
    training.modelName("mine").anchorTensor("grad", "Gradient___weight")
    evaluation = evaluation_options(training=frozen(training))
    assert evaluation.Training.gradient_accumulation == 1
    assert (evaluation.device_iterations, evaluation.replication_factor) == (16, 2)
    assert output_mode(evaluation, training=False) is poptorch.OutputMode.All
    assert evaluation.model_name == "mine" and evaluation.anchored_tensors == {}
    assert training.Training.gradient_accumulation == 8


def test_derived_evaluation_takes_its_own_numbers() -> None:
    """Settings for evaluation win over derived ones."""
    training = training_options(IPUConfig(device_iterations=2, replication_factor=2))
    evaluation = evaluation_options(IPUConfig(device_iterations=5, replication_factor=1), training=training)
    assert (evaluation.device_iterations, evaluation.replication_factor) == (5, 1)


def test_accumulation_in_evaluation_is_refused() -> None:
    """Inference has nothing to accumulate; the message has the deviceIterations that do the same."""
    mine = poptorch.Options().deviceIterations(2)
    mine.Training.gradientAccumulation(4)
    with pytest.raises(OptionsError, match=r"gradientAccumulation 4.*deviceIterations\(8\)"):
        evaluation_options(IPUConfig(options=mine))


@pytest.mark.parametrize(("replicas", "fits"), [(1, True), (3, False), (4, True), (6, False), (64, True)])
def test_replicas_make_a_power_of_two_of_ipus(replicas: int, fits: bool) -> None:
    """A number of IPUs that no machine hands out is refused before anything is compiled."""
    if fits:
        assert check_ipus(training_options(IPUConfig(replication_factor=replicas))) == replicas
    else:
        with pytest.raises(OptionsError, match=rf"replicationFactor \({replicas}\).*{replicas} IPUs.*power of two"):
            training_options(IPUConfig(replication_factor=replicas))


def test_ipus_per_replica_count() -> None:
    """A model over several IPUs needs them for each replica, rounded up where that is allowed."""
    options = training_options(IPUConfig(replication_factor=2))
    assert check_ipus(options, ipus_per_replica=4) == 8
    with pytest.raises(OptionsError, match=r"replicationFactor \(2\) x IPUs per replica \(3\) = 6 IPUs"):
        check_ipus(options, ipus_per_replica=3)
    with pytest.raises(OptionsError, match="more than the 64"):
        check_ipus(options, ipus_per_replica=64)
    assert (
        check_ipus(training_options(IPUConfig(options=poptorch.Options().autoRoundNumIPUs(True), replication_factor=3)))
        == 4
    )


def test_simulated_ipus_need_no_power_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """The IPU model and offline targets are exempt, as they are in PopTorch."""
    assert (
        check_ipus(training_options(IPUConfig(options=poptorch.Options().useIpuModel(True), replication_factor=3))) == 3
    )
    assert (
        check_ipus(training_options(IPUConfig(options=poptorch.Options().useOfflineIpuTarget(), replication_factor=3)))
        == 3
    )
    monkeypatch.setenv("POPTORCH_IPU_MODEL", "1")
    assert check_ipus(training_options(IPUConfig(replication_factor=3))) == 3


@pytest.mark.parametrize("value", [0, -2, 2.0, True, "2"])
def test_factors_are_positive_integers(value: Any) -> None:
    """PopTorch would store such values and fail in the back end, or refuse them without a word."""
    with pytest.raises(OptionsError, match="device_iterations must be"):
        training_options(IPUConfig(device_iterations=value))


def test_output_modes() -> None:
    """A mode is given by member or name; EveryN with a period that divides deviceIterations."""
    assert output_mode(training_options(IPUConfig(output_mode="Final")), True) is poptorch.OutputMode.Final
    mine = poptorch.Options().outputMode(poptorch.OutputMode.Sum)
    assert output_mode(training_options(IPUConfig(options=mine)), True) is poptorch.OutputMode.Sum
    options = training_options(IPUConfig(device_iterations=4, output_mode="EveryN", output_return_period=2))
    assert (output_mode(options, True), options.output_return_period) == (poptorch.OutputMode.EveryN, 2)
    assert output_mode(poptorch.Options(), training=True) is poptorch.OutputMode.Final
    assert output_mode(poptorch.Options(), training=False) is poptorch.OutputMode.All


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"output_mode": "Last"}, "'Last' does not exist. Choose from: All, Default, EveryN, Final, Sum"),
        ({"output_mode": "EveryN"}, "needs output_return_period"),
        ({"output_mode": "All", "output_return_period": 2}, "belongs to OutputMode.EveryN"),
        ({"output_return_period": 2}, "means nothing without"),
        (
            {"device_iterations": 4, "output_mode": "EveryN", "output_return_period": 3},
            "period 3 does not fit deviceIterations 4",
        ),
    ],
)
def test_impossible_output_modes(arguments: Any, message: str) -> None:
    """Settings that PopTorch would refuse at compile, or store and ignore, are refused here."""
    with pytest.raises(OptionsError, match=message):
        training_options(IPUConfig(**arguments))


def test_grouped_inputs_with_iterations_are_refused() -> None:
    """PopTorch 3.3 deals the rows out wrongly in this combination."""
    mine = poptorch.Options().replicationFactor(4)
    mine.inputReplicaGrouping(2, poptorch.CommGroupType.Consecutive)
    with pytest.raises(OptionsError, match="wrong samples"):
        training_options(IPUConfig(options=mine, device_iterations=2))


def test_other_objects_are_no_options() -> None:
    """Another object is refused by its type."""
    with pytest.raises(TypeError, match=r"The options are a builtins\.str, not a poptorch\.Options"):
        training_options(IPUConfig(options="deviceIterations"))
