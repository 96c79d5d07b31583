"""Checks of what PopTorch's setters let pass and its back end refuses when a model compiles."""

from __future__ import annotations

import os

from ignite_ipu.emulator.enums import MeanReductionStrategy, OutputMode
from ignite_ipu.emulator.errors import backend_error
from ignite_ipu.emulator.logs import logger
from ignite_ipu.emulator.options.guarded import OptionsDict

IPU_VERSIONS = (1, 2, 21)


def check_at_compile(options: OptionsDict, training: bool) -> None:
    """Refuse options that no model compiles with.

    Args:
        options: With the output mode already chosen.
        training: Whether the model is compiled for training.

    Raises:
        Error: There is such an option.
    """
    _check_counts(options)
    _check_grouping(options)
    _check_output_mode(options)
    if training:
        _check_reduction(options)
    _check_distribution(options)
    _check_device(options)
    options._Popart._check_at_compile()


def _check_counts(options: OptionsDict) -> None:
    for name, value in (
        ("deviceIterations", options.device_iterations),
        ("replicationFactor", options.replication_factor),
        ("Training.gradientAccumulation", options.Training.gradient_accumulation),
    ):
        if value <= 0:
            raise backend_error(f"{name} must be greater than zero, and it is {value}.")
    if options.replication_factor % options.input_group_size:
        raise backend_error(
            f"The group size of inputReplicaGrouping ({options.input_group_size}) must be a factor of "
            f"replicationFactor ({options.replication_factor}), which was changed after it."
        )


def _check_grouping(options: OptionsDict) -> None:
    steps = options.device_iterations * options.Training.gradient_accumulation
    if options.input_group_size > 1 and steps > 1:
        logger.warning(
            "inputReplicaGrouping of %d replicas with %d micro-batches a replica: PopTorch 3.3 does not step groups "
            "through the batch correctly, and results on an IPU are unspecified. The emulator reads the batch in the "
            "documented order [deviceIterations][gradientAccumulation][group][row].",
            options.input_group_size,
            steps,
        )


def _check_output_mode(options: OptionsDict) -> None:
    if options.output_mode != OutputMode.EveryN:
        return
    period, iterations = options.output_return_period, options.device_iterations
    if period > iterations:
        raise backend_error(f"Return period must be <= deviceIterations ({iterations}), and it is {period}.")
    if iterations % period:
        raise backend_error(f"Return period ({period}) must be a factor of deviceIterations ({iterations}).")


def _check_reduction(options: OptionsDict) -> None:
    strategy = options.Training.meanAccumulationAndReplicationReductionStrategy
    if strategy is MeanReductionStrategy.PostAndLoss:
        raise backend_error(
            "MeanReductionStrategy out of range: the back end knows Running and Post, not PostAndLoss. "
            "Both divide by accumulation and replicas; choose Post to divide last."
        )


def _check_distribution(options: OptionsDict) -> None:
    process, processes = options.Distributed.processId, options.Distributed.numProcesses
    if not 0 <= process < processes:
        raise backend_error(
            f"Process {process} of {processes} cannot be: ids run from 0 to the number of processes less one. "
            "See options.Distributed.configureProcessId."
        )


def _check_device(options: OptionsDict) -> None:
    if options._Popart._value("instrumentWithHardwareCycleCounter", False):
        raise backend_error(
            "Cycle counting is only supported on actual IPU hardware; this is the emulator. Leave logCycleCount off."
        )
    if selected(options):
        version()
    if options.exists("ipu_version") and options.ipu_version not in IPU_VERSIONS:
        raise backend_error(f"Unknown IPU version {options.ipu_version!r}: useOfflineIpuTarget takes {IPU_VERSIONS}.")
    for ipu, proportion in options.available_memory_proportion.items():
        if not isinstance(proportion, (int, float)) or not 0 <= proportion <= 1:
            raise backend_error(
                f"The available memory proportion of IPU{ipu} must be between 0 and 1, and it is {proportion!r}."
            )


VARIABLES = ("POPTORCH_IPU_MODEL", "POPTORCH_SMALL_IPU_MODEL")
VERSION_VARIABLE = "POPTORCH_IPU_MODEL_VERSION"
VERSIONS = ("ipu1", "ipu2", "ipu21")


def selected_by_environment() -> bool:
    """Return whether a variable selects the IPU model.

    Raises:
        ValueError: A variable is no integer.
    """
    return any(_flag(variable) for variable in VARIABLES)


def selected(options: OptionsDict) -> bool:
    """Return whether `options` or, where they leave it open, the environment selects the IPU model."""
    return bool(options.use_model) if options.exists("use_model") else selected_by_environment()


def version() -> str:
    """Return which IPU a model would be of; all compute the same here.

    Raises:
        ValueError: The variable names none.
    """
    found = os.environ.get(VERSION_VARIABLE, "ipu2")
    if found not in VERSIONS:
        raise ValueError(f"Environment variable {VERSION_VARIABLE} must be one of {VERSIONS}, and it is {found!r}.")
    return found


def _flag(variable: str) -> bool:
    text = os.environ.get(variable, "0")
    try:
        return int(text) != 0
    except ValueError:
        raise ValueError(f"Environment variable {variable} must be 0 or 1, and it is {text!r}.") from None
