"""Options that matter when training."""

from __future__ import annotations

from ignite_ipu.emulator.enums import MeanReductionStrategy, ReductionType
from ignite_ipu.emulator.logs import logger
from ignite_ipu.emulator.options.guarded import OptionsDict
from ignite_ipu.emulator.options.popart import _PopartOptions


class _TrainingOptions(OptionsDict):
    """`Options.Training`.

    Args:
        popart_options: The back-end settings of the same `Options`, which some setters write to.
    """

    _popart_options: _PopartOptions

    def __init__(self, popart_options: _PopartOptions) -> None:
        super().__init__(
            gradient_accumulation=1,
            accumulation_and_replication_reduction_type=ReductionType.Mean,
            meanAccumulationAndReplicationReductionStrategy=MeanReductionStrategy.Post,
        )
        self._declare(_popart_options=popart_options)

    def gradientAccumulation(self, gradient_accumulation: int) -> _TrainingOptions:
        """Accumulate the gradients of so many micro-batches before each update."""
        return self._with(gradient_accumulation=gradient_accumulation)

    def accumulationAndReplicationReductionType(self, reduction_type: ReductionType) -> _TrainingOptions:
        """Choose whether accumulated and reduced gradients are summed or averaged.

        Raises:
            ValueError: `reduction_type` is neither `ReductionType.Mean` nor `ReductionType.Sum`.
        """
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
        self._popart_options.set("automaticLossScalingSettings.enabled", enabled)
        return self

    def setConvolutionDithering(self, enabled: bool) -> _TrainingOptions:
        """Spread convolutions over the tiles unevenly, replacing all other convolution settings."""
        text = "true" if enabled else "false"
        self._popart_options._set_strings("convolutionOptions", {"enableConvDithering": text})
        return self


class _JitOptions(OptionsDict):
    """`Options.Jit`."""

    def traceModel(self, trace_model: bool) -> _JitOptions:
        """Do nothing but warn: models are always captured by dispatch.

        Raises:
            ValueError: `trace_model` asks for the front end that is gone.
        """
        logger.warning("Jit.traceModel(%r) is deprecated: models are always captured by dispatch.", trace_model)
        if trace_model:
            raise ValueError("Tracing a model with torch.jit is no longer supported: remove Jit.traceModel(True).")
        return self
