"""Checks of values that PopTorch's setters accept and its back end refuses when a model compiles."""

from __future__ import annotations

import os

from ignite_ipu.emulator.enums import MeanReductionStrategy, OutputMode
from ignite_ipu.emulator.errors import backend_error
from ignite_ipu.emulator.logs import logger
from ignite_ipu.emulator.options.guarded import OptionsDict

VARIABLES = ("POPTORCH_IPU_MODEL", "POPTORCH_SMALL_IPU_MODEL")
_VERSION_VARIABLE = "POPTORCH_IPU_MODEL_VERSION"
_VERSIONS = ("ipu1", "ipu2", "ipu21")
_IPU_VERSIONS = (1, 2, 21)


def check_at_compile(options: OptionsDict, training: bool) -> None:
    """Refuse options, in which the output mode is chosen, that no model compiles with."""
    _check_batches(options)
    strategy = options.Training.meanAccumulationAndReplicationReductionStrategy
    if training and strategy is MeanReductionStrategy.PostAndLoss:
        raise backend_error(
            "MeanReductionStrategy out of range: the back end knows Running and Post, not PostAndLoss. "
            "Both divide by accumulation and replicas; choose Post to divide last."
        )
    process, processes = options.Distributed.processId, options.Distributed.numProcesses
    if not 0 <= process < processes:
        raise backend_error(
            f"Process {process} of {processes} cannot be: ids run from 0 to the number of processes less one. "
            "See options.Distributed.configureProcessId."
        )
    _check_device(options)
    options._Popart._check_at_compile()


def _check_batches(options: OptionsDict) -> None:
    replicas, iterations = options.replication_factor, options.device_iterations
    accumulation, group = options.Training.gradient_accumulation, options.input_group_size
    names = ("deviceIterations", "replicationFactor", "Training.gradientAccumulation")
    for name, value in zip(names, (iterations, replicas, accumulation)):
        if value <= 0:
            raise backend_error(f"{name} must be greater than zero, and it is {value}.")
    if replicas % group:
        raise backend_error(
            f"The group size of inputReplicaGrouping ({group}) must be a factor of replicationFactor ({replicas}), "
            "which was changed after it."
        )
    if group > 1 and iterations * accumulation > 1:
        logger.warning(
            "inputReplicaGrouping of %d replicas with %d micro-batches a replica: PopTorch 3.3 does not step groups "
            "through the batch correctly, and results on an IPU are unspecified. The emulator reads the batch in the "
            "documented order [deviceIterations][gradientAccumulation][group][row].",
            group,
            iterations * accumulation,
        )
    period = options.output_return_period
    if options.output_mode == OutputMode.EveryN and period > iterations:
        raise backend_error(f"Return period must be <= deviceIterations ({iterations}), and it is {period}.")
    if options.output_mode == OutputMode.EveryN and iterations % period:
        raise backend_error(f"Return period ({period}) must be a factor of deviceIterations ({iterations}).")


def _check_device(options: OptionsDict) -> None:
    if options._Popart._value("instrumentWithHardwareCycleCounter", False):
        raise backend_error(
            "Cycle counting is only supported on actual IPU hardware; this is the emulator. Leave logCycleCount off."
        )
    version = os.environ.get(_VERSION_VARIABLE, "ipu2")  # all compute the same here
    if options._uses_ipu_model() and version not in _VERSIONS:
        raise ValueError(f"Environment variable {_VERSION_VARIABLE} must be one of {_VERSIONS}, and it is {version!r}.")
    if options.exists("ipu_version") and options.ipu_version not in _IPU_VERSIONS:
        raise backend_error(f"Unknown IPU version {options.ipu_version!r}: useOfflineIpuTarget takes {_IPU_VERSIONS}.")
    for ipu, proportion in options.available_memory_proportion.items():
        if not isinstance(proportion, (int, float)) or not 0 <= proportion <= 1:
            raise backend_error(
                f"The available memory proportion of IPU{ipu} must be between 0 and 1, and it is {proportion!r}."
            )


def selected_by_environment() -> bool:
    """Return whether a variable selects the IPU model."""
    for variable in VARIABLES:
        text = os.environ.get(variable, "0")
        try:
            if int(text):
                return True
        except ValueError:
            raise ValueError(f"Environment variable {variable} must be 0 or 1, and it is {text!r}.") from None
    return False
