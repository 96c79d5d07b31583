"""The parts of `Options`: training, number formats, processes, places of tensors, and a front end that is gone."""

from __future__ import annotations

import os
from typing import Optional, TypeVar

import torch

from ignite_ipu.emulator.enums import HalfFloatCastingBehavior, MeanReductionStrategy, ReductionType
from ignite_ipu.emulator.logs import logger
from ignite_ipu.emulator.options.guarded import OptionsDict, checked
from ignite_ipu.emulator.options.popart import _PopartOptions
from ignite_ipu.emulator.trace.autocasting import Policy, warn_of_age
from ignite_ipu.emulator.trace.capture import Precision

_PARTIALS = {torch.float32: "float", torch.float16: "half"}
_Self = TypeVar("_Self", bound="_WithBackEnd")


def _check_kind(setter: str, value: object, kind: type, name: str) -> None:
    if not isinstance(value, kind):
        raise ValueError(f"{setter} needs to be set to a {name}, got {value!r}.")


class _WithBackEnd(OptionsDict):
    """Options of which some are settings of the back end of the same `Options`."""

    _popart_options: _PopartOptions

    def __init__(self, popart_options: _PopartOptions, **default_values: object) -> None:
        super().__init__(**default_values)
        self._declare(_popart_options=popart_options)

    def _set_back_end(self: _Self, name: str, value: object) -> _Self:
        self._popart_options.set(name, value)
        return self


class _TrainingOptions(_WithBackEnd):
    """`Options.Training`."""

    def __init__(self, popart_options: _PopartOptions) -> None:
        super().__init__(
            popart_options,
            gradient_accumulation=1,
            accumulation_and_replication_reduction_type=ReductionType.Mean,
            meanAccumulationAndReplicationReductionStrategy=MeanReductionStrategy.Post,
        )

    def gradientAccumulation(self, gradient_accumulation: int) -> _TrainingOptions:
        """Accumulate the gradients of so many micro-batches before each update."""
        return self._with(gradient_accumulation=gradient_accumulation)

    def accumulationAndReplicationReductionType(self, reduction_type: ReductionType) -> _TrainingOptions:
        """Choose whether accumulated and reduced gradients are summed or averaged."""
        self.checkIsFrozen("accumulationAndReplicationReductionType")
        # By identity: the plain ints these members equal are refused.
        if not any(reduction_type is each for each in (ReductionType.Mean, ReductionType.Sum)):
            raise ValueError(
                "accumulationAndReplicationReductionType must be set to ReductionType.Mean or ReductionType.Sum, "
                f"got {reduction_type!r}."
            )
        return self._with(accumulation_and_replication_reduction_type=reduction_type)

    def setMeanAccumulationAndReplicationReductionStrategy(
        self, mean_reduction_strategy: MeanReductionStrategy
    ) -> _TrainingOptions:
        """Choose when a mean divides; `PostAndLoss` is refused when a model compiles."""
        return self._with(meanAccumulationAndReplicationReductionStrategy=mean_reduction_strategy)

    def setAutomaticLossScaling(self, enabled: bool) -> _TrainingOptions:
        """Let the back end adapt the loss scaling while it trains."""
        return self._set_back_end("automaticLossScalingSettings.enabled", enabled)

    def setConvolutionDithering(self, enabled: bool) -> _TrainingOptions:
        """Spread convolutions over the tiles unevenly, replacing all other convolution settings."""
        return self._set_back_end("convolutionOptions", {"enableConvDithering": "true" if enabled else "false"})


class _PrecisionOptions(_WithBackEnd):
    """`Options.Precision`; `autocastEnabled` and `autocastPolicy` belong to the API before 3.3."""

    def __init__(self, popart_options: _PopartOptions) -> None:
        # No policy means the one that autocasting itself starts with.
        super().__init__(popart_options, autocast_enabled=True, autocast_policy=None)

    def enableFloatingPointExceptions(self, enabled: bool) -> _PrecisionOptions:
        """Stop a run at the first invalid operation, division by zero or overflow."""
        return self._set_back_end("enableFloatingPointChecks", checked("enableFloatingPointExceptions", enabled, bool))

    def enableStochasticRounding(self, enabled: bool) -> _PrecisionOptions:
        """Round half values up or down at random, in proportion to the distances."""
        return self._set_back_end("enableStochasticRounding", enabled)

    def setPartialsType(self, dtype: torch.dtype) -> _PrecisionOptions:
        """Choose the type in which products and convolutions add up, replacing all other convolution settings."""
        if dtype not in _PARTIALS:
            raise ValueError(f"The partials type should be either torch.float or torch.half, got {dtype!r}.")
        name = _PARTIALS[dtype]
        self._set_back_end("partialsTypeMatMuls", name)
        return self._set_back_end("convolutionOptions", {"partialsType": name})

    def halfFloatCasting(self, half_float_casting: HalfFloatCastingBehavior) -> _PrecisionOptions:
        """Do nothing but warn: the front end that this tuned is gone."""
        logger.warning(
            "Precision.halfFloatCasting(%r) is deprecated and has no effect. Elementwise operands promote as in "
            "PyTorch. Linear layers and convolutions run in the type of their input: float16 inputs of float32 weights "
            "are multiplied in float16.",
            half_float_casting,
        )
        return self

    def runningStatisticsAlwaysFloat(self, value: bool) -> _PrecisionOptions:
        """Do nothing but warn: cast the statistics with `.float()` before wrapping the model."""
        _check_kind("runningStatisticsAlwaysFloat", value, bool, "bool")
        logger.warning(
            "Precision.runningStatisticsAlwaysFloat(%r) is deprecated and has no effect: running statistics keep "
            "the type they have when the model is wrapped.",
            value,
        )
        return self

    def autocastEnabled(self, autocast_enabled: bool) -> _PrecisionOptions:
        """Switch every autocast in a model on or off (API before 3.3)."""
        warn_of_age("Options.Precision.autocastEnabled")
        _check_kind("autocastEnabled", autocast_enabled, bool, "bool")
        return self._with(autocast_enabled=autocast_enabled)

    def autocastPolicy(self, autocast_policy: Policy) -> _PrecisionOptions:
        """Choose which operators autocasting runs in half, and which in float (API before 3.3)."""
        warn_of_age("Options.Precision.autocastPolicy")
        _check_kind("autocastPolicy", autocast_policy, Policy, "poptorch.autocasting.Policy")
        self.checkIsFrozen("autocastPolicy")
        self._values["autocast_policy"] = autocast_policy
        return self

    def _compiled_for(self) -> Precision:
        back_end = self._popart_options
        return Precision(
            policy=(self.autocast_policy or Policy()) if self.autocast_enabled else None,
            floating_point_exceptions=bool(back_end._value("enableFloatingPointChecks")),
            stochastic_rounding=bool(back_end._value("enableStochasticRounding")),
            strided_groups=bool(back_end._value("groupNormStridedChannelGrouping")),
        )


class _DistributedOptions(OptionsDict):
    """`Options.Distributed`; reads the number of processes and its own from Open MPI's variables."""

    def __init__(self) -> None:
        super().__init__(num_distributed_processes=1, distributed_process_id=0, ipuof_configs={})
        self.setEnvVarNames("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")

    def disable(self) -> _DistributedOptions:
        """Be one process of one."""
        return self.configureProcessId(0, 1)

    def setEnvVarNames(self, var_num_processes: str, var_process_id: str) -> _DistributedOptions:
        """Read both numbers from other environment variables, now."""
        numbers = []
        for variable, default in ((var_process_id, "0"), (var_num_processes, "1")):
            text = os.environ.get(variable, default)
            try:
                numbers.append(int(text))
            except ValueError:
                raise ValueError(f"Environment variable {variable} must be an integer, and it is {text!r}.") from None
        return self.configureProcessId(*numbers)

    def configureProcessId(self, process_id: int, num_processes: int) -> _DistributedOptions:
        """Be process `process_id` of `num_processes`."""
        return self._with(distributed_process_id=process_id, num_distributed_processes=num_processes)

    @property
    def processId(self) -> int:
        """Number of this process."""
        return int(self.distributed_process_id)

    @property
    def numProcesses(self) -> int:
        """Number of processes."""
        return int(self.num_distributed_processes)


class TensorLocationSettings(OptionsDict):
    """Place of one kind of tensor, and its way there; the back end chooses the rest."""

    def minElementsForOffChip(self, min_elements: int) -> TensorLocationSettings:
        """Keep tensors with fewer elements on the chip."""
        return self._with(minElementsForOffChip=checked("minElementsForOffChip", min_elements, int))

    def minElementsForReplicatedTensorSharding(self, min_elements: int) -> TensorLocationSettings:
        """Leave tensors with fewer elements whole in each replica."""
        name = "minElementsForReplicatedTensorSharding"
        return self._with(**{name: checked(name, min_elements, int)})

    def useOnChipStorage(self, use: Optional[bool] = True) -> TensorLocationSettings:
        """Keep the tensors on the chip; None leaves it to the back end again."""
        if use is None:
            self.checkIsFrozen("onChip")
            self.deleteIfExists("onChip")
            return self
        return self._flag("onChip", use)

    def useReplicatedTensorSharding(self, use: bool = True) -> TensorLocationSettings:
        """Give each replica a part of the tensor instead of all of it."""
        return self._flag("useReplicatedTensorSharding", use)

    def useIOTilesToLoad(self, use: bool = True) -> TensorLocationSettings:
        """Load through the tiles set aside for transfers."""
        return self._flag("useIOTilesToLoad", use)

    def useIOTilesToStore(self, use: bool = True) -> TensorLocationSettings:
        """Store through the tiles set aside for transfers."""
        return self._flag("useIOTilesToStore", use)

    def _flag(self, name: str, value: bool) -> TensorLocationSettings:
        return self._with(**{name: int(checked(name, value, bool))})


class _TensorLocationOptions(OptionsDict):
    """`Options.TensorLocations`; keeps snapshots, so that editing a settings object later changes nothing."""

    def numIOTiles(self, num_tiles: int) -> _TensorLocationOptions:
        """Set tiles of each IPU aside for transfers: an even number between 32 and 192."""
        if checked("numIOTiles", num_tiles, int) not in range(32, 193, 2):
            raise AssertionError(f"numIOTiles must be an even number between 32 and 192, got {num_tiles!r}.")
        return self._with(numIOTiles=num_tiles)

    def setActivationLocation(self, location: TensorLocationSettings) -> _TensorLocationOptions:
        """Set the location of activations."""
        return self._location("location_activation", location)

    def setWeightLocation(self, location: TensorLocationSettings) -> _TensorLocationOptions:
        """Set the location of weights."""
        return self._location("location_weight", location)

    def setOptimizerLocation(self, location: TensorLocationSettings) -> _TensorLocationOptions:
        """Set the location of the optimizer's state."""
        return self._location("location_optimizer", location)

    def setAccumulatorLocation(self, location: TensorLocationSettings) -> _TensorLocationOptions:
        """Set the location of accumulated gradients."""
        return self._location("location_accumulator", location)

    def _location(self, name: str, location: TensorLocationSettings) -> _TensorLocationOptions:
        if not isinstance(location, TensorLocationSettings):
            raise AssertionError(f"A location is a TensorLocationSettings, got {location!r}.")
        return self._with(**{name: location.toDict()})


class _JitOptions(OptionsDict):
    """`Options.Jit`."""

    def traceModel(self, trace_model: bool) -> _JitOptions:
        """Do nothing but warn: models are always captured by dispatch."""
        logger.warning("Jit.traceModel(%r) is deprecated: models are always captured by dispatch.", trace_model)
        if trace_model:
            raise ValueError("Tracing a model with torch.jit is no longer supported: remove Jit.traceModel(True).")
        return self
