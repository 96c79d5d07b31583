"""The settings handed to PopTorch's back end as they are, checked only when a model compiles."""

from __future__ import annotations

from typing import Any, Dict, FrozenSet

from ignite_ipu.emulator.errors import backend_error
from ignite_ipu.emulator.options.guarded import Freezable
from ignite_ipu.emulator.options.popart_enums import SETTINGS

_CONTAINERS = (list, set, tuple)


class _PopartOptions(Freezable):
    """Back-end settings, `options`, by the names that they were given under."""

    def __init__(self) -> None:
        self.options: Dict[str, Any] = {}
        self._is_frozen = False
        self.set("instrumentWithHardwareCycleCounter", False)
        self.set("rearrangeAnchorsOnHost", False)

    def set(self, key: str, value: Any) -> _PopartOptions:
        """Set one back-end option to a number, a text, or a list, tuple or set of texts or whole numbers.

        An unknown name or type is refused when a model compiles.
        """
        self.checkIsFrozen(key)
        self.options[key] = value
        return self

    def setEngineOptions(self, engine_options: Dict[str, str]) -> _PopartOptions:
        """Replace the options of the engine, those that `POPLAR_ENGINE_OPTIONS` holds too."""
        self.checkIsFrozen("engineOptions")
        if not _is_dict_of(str, engine_options):
            raise AssertionError(f"engineOptions takes a dict of strings by name, got {engine_options!r}.")
        return self.set("engineOptions", dict(engine_options))

    def setPatterns(self, patterns: Dict[str, bool], level: int = 2) -> _PopartOptions:
        """Switch graph transformations on or off.

        Args:
            patterns: Transformation name to whether it runs.
            level: Which of them run otherwise: 0 none, 1 the needed ones, 2 the default ones, 3 all.
        """
        self.checkIsFrozen("patterns")
        if not isinstance(level, int):
            raise AssertionError(f"The level of setPatterns is an int, got {level!r}.")
        if not _is_dict_of(bool, patterns):
            raise AssertionError(f"setPatterns takes a dict of bools by name, got {patterns!r}.")
        self.options["patterns_level"] = level
        self.options["patterns"] = dict(patterns)
        return self

    def __repr__(self) -> str:
        settings = (f"{key}={value!r}" for key, value in self.options.items())
        return f"{type(self).__name__}({', '.join(settings)})"

    def _value(self, key: str, default: Any = None) -> Any:
        """Return the value that `set(key, ...)` stored, or `default`."""
        return self.options.get(key, default)

    def _check_at_compile(self) -> None:
        """Refuse names and types that the back end does not know."""
        for key, value in self.options.items():
            if isinstance(value, _CONTAINERS) and not value:
                continue  # an empty container says nothing, whatever its name
            if key == "patterns_level":
                _check_range(key, value)
                continue
            kind = _kind(key, value)
            if key not in KNOWN[kind]:
                other = [each for each, names in KNOWN.items() if key in names]
                hint = f"it is a {other[0]}" if other else "the back end has none of that name"
                raise backend_error(f"Unknown {kind} option {key} (value {value!r}): {hint}.")
            _check_range(key, value)


def _check_range(key: str, value: Any) -> None:
    """Refuse numbers that are no value of the enumeration that a setting takes."""
    if key not in SETTINGS:
        return
    members = list(SETTINGS[key])
    for number in value if isinstance(value, _CONTAINERS) else [value]:
        text = str(number)
        if not text.isdigit() or int(text) >= len(members):
            values = ", ".join(f"{int(member)} ({member.name})" for member in members)
            raise backend_error(
                f"Value for {key} out of range: {number!r}. popart.{SETTINGS[key].__name__} has {values}."
            )


def _is_dict_of(kind: type, value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(k, str) and isinstance(v, kind) for k, v in value.items())


def _kind(key: str, value: Any) -> str:
    # bool before int, whose subclass it is.
    for kind, python_type in (("bool", bool), ("int", int), ("float", float), ("str", str), ("dict", dict)):
        if isinstance(value, python_type):
            return kind
    if not isinstance(value, _CONTAINERS):
        raise backend_error(
            f"Unknown value type {type(value).__name__} of {value!r} for option {key}: the back end takes bool, int, "
            "float, str, a list, tuple or set of str or int, or a dict."
        )
    for element in value:
        if not isinstance(element, (str, int)):
            raise backend_error(
                f"Don't know how to convert {element!r}, of type {type(element).__name__}, in the value of option "
                f"{key}: the elements of a list, tuple or set are str or int."
            )
    return "list"


# The names of the back end's session options, by the type of value each takes.
# Source: PopART's `SessionOptions` and the settings nested in it.

_NAMES: Dict[str, str] = {
    "bool": """
        aliasZeroCopy automaticLossScalingSettings.enabled batchSerializationSettings.concatOnExecutionPhaseChange
        batchSerializationSettings.concatOnPipelineStageChange batchSerializationSettings.concatOnVirtualGraphChange
        compileEngine constantWeights decomposeGradSum delayVarUpdates disableGradAccumulationTensorStreams
        disableOptimizerStateTensorStreams dotOpNames enableDistributedReplicatedGraphs enableEngineCaching
        enableExplicitIR enableExplicitMainLoops enableFloatingPointChecks enableFullyConnectedPass
        enableGradientAccumulation enableInplaceAmbiguityChecking enableLoadAndOffloadRNGState enableMergeExchange
        enableNonStableSoftmax enableOutlining enableOutliningCopyCostPruning enablePipelining
        enablePrefetchDatastreams enableReplicatedGraphs enableSerializedMatmuls enableStableNorm
        enableStochasticRounding enableSupportedDataTypeCasting ensureFp32LossScaleTensor explicitRecomputation
        exportPoplarComputationGraph exportPoplarVertexGraph groupHostSync groupNormStridedChannelGrouping
        instrumentWithHardwareCycleCounter opxAliasChecking opxModifyChecking rearrangeAnchorsOnHost
        rearrangeStreamsOnHost replicatedCollectivesSettings.mergeAllReduceCollectives
        replicatedCollectivesSettings.prepareScheduleForMergingCollectives
        scheduleNonWeightUpdateGradientConsumersEarly separateCallOpPdfs strictOpVersions useHostCopyOps
        """,
    "int": """
        accumulateOuterFragmentSettings.schedule accumulationAndReplicationReductionType accumulationFactor
        autodiffSettings.stitchStrategy automaticLossScalingSettings.gradientTensorTrackingMethod
        automaticLossScalingSettings.updatePeriod autoRecomputation batchSerializationSettings.batchSchedule
        batchSerializationSettings.factor batchSerializationSettings.method
        batchSerializationSettings.transformContext compilationProgressTotal defaultBufferingDepth
        defaultPrefetchBufferingDepth executionPhaseSettings.phases executionPhaseSettings.stages finalDotOp
        firstDotOp globalReplicaOffset globalReplicationFactor looseThresholdAtPeak
        meanAccumulationAndReplicationReductionStrategy mergeVarUpdate mergeVarUpdateMemThreshold numIOTiles
        replicatedGraphCount subgraphCopyingStrategy swapLimitScheduler syntheticDataMode
        transitiveClosureOptimizationThreshold virtualGraphMode
        """,
    "float": """
        automaticLossScalingSettings.binEdgeLocation automaticLossScalingSettings.thresholdUpperCountProportion
        outlineSequenceBreakCost outlineThreshold timeLimitScheduler
        """,
    "str": """
        cachePath customCodeletCompileFlags kahnTieBreaker logDir partialsTypeMatMuls saveInitializersToFile
        serializedPoprithmsShiftGraphsDir
        """,
    "list": """
        accumulateOuterFragmentSettings.excludedVirtualGraphs customCodelets dotChecks hardwareInstrumentations
        updatableNamedBuffers
        """,
    "dict": """
        convolutionOptions engineOptions gclOptions lstmOptions matmulOptions patterns reportOptions
        """,
}

KNOWN: Dict[str, FrozenSet[str]] = {kind: frozenset(names.split()) for kind, names in _NAMES.items()}
