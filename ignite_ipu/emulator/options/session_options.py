"""The names of the back end's session options, by the type of value each takes.

Source: PopART's `SessionOptions` and the settings nested in it.
"""

from __future__ import annotations

from typing import Dict, FrozenSet

_NAMES: Dict[str, str] = {
    "bool": """
        aliasZeroCopy automaticLossScalingSettings.enabled batchSerializationSettings.concatOnExecutionPhaseChange
        batchSerializationSettings.concatOnPipelineStageChange batchSerializationSettings.concatOnVirtualGraphChange
        compileEngine constantWeights createImplicitPipeliningFwdOnlyProgram decomposeGradSum delayVarUpdates
        disableGradAccumulationTensorStreams disableOptimizerStateTensorStreams dotOpNames
        enableConstantFoldingOfMultipleConsumers enableDistributedReplicatedGraphs enableEngineCaching
        enableExplicitIR enableExplicitMainLoops enableFloatingPointExceptions enableFullyConnectedPass
        enableGradientAccumulation enableInplaceAmbiguityChecking enableLoadAndOffloadRNGState enableMergeExchange
        enableNonStableSoftmax
        enableOutlining enableOutliningCopyCostPruning enablePipelining enablePrefetchDatastreams
        enableReplicatedGraphs enableSerializedMatmuls enableStableNorm enableStochasticRounding
        enableSupportedDataTypeCasting enableVariablesCaching ensureFp32LossScaleTensor explicitRecomputation
        exportPoplarComputationGraph exportPoplarVertexGraph groupHostSync groupNormStridedChannelGrouping
        instrumentWithHardwareCycleCounter opxAliasChecking opxModifyChecking rearrangeAnchorsOnHost
        rearrangeStreamsOnHost replicatedCollectivesSettings.mergeAllGatherCollectives
        replicatedCollectivesSettings.mergeAllReduceCollectives
        replicatedCollectivesSettings.mergeReduceScatterCollectives
        replicatedCollectivesSettings.prepareScheduleForMergingCollectives
        scheduleNonWeightUpdateGradientConsumersEarly separateCallOpPdfs stashAllTensorsInferencePipeline
        strictOpVersions throwIfLog2ScaleFactorNotInRange useHostCopyOps useLoopCandidateCreator
        """,
    "int": """
        accumulateOuterFragmentSettings.schedule accumulationAndReplicationReductionType accumulationFactor
        autodiffSettings.stitchStrategy automaticLossScalingSettings.gradientTensorTrackingMethod
        automaticLossScalingSettings.updatePeriod autoRecomputation batchSerializationSettings.batchSchedule
        batchSerializationSettings.factor batchSerializationSettings.method
        batchSerializationSettings.transformContext defaultBufferingDepth defaultPrefetchBufferingDepth
        executionPhaseSettings.accumulatorIOSchedule executionPhaseSettings.activationIOSchedule
        executionPhaseSettings.optimizerStateIOSchedule executionPhaseSettings.phases executionPhaseSettings.schedule
        executionPhaseSettings.stages executionPhaseSettings.weightIOSchedule finalDotOp firstDotOp
        globalReplicaOffset globalReplicationFactor looseThresholdAtPeak
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
        serializedPoprithmsAnnealGraphsDir serializedPoprithmsShiftGraphsDir
        """,
    "list": """
        accumulateOuterFragmentSettings.excludedVirtualGraphs automaticLossScalingSettings.toTrackTensors
        customCodelets dotChecks hardwareInstrumentations updatableNamedBuffers
        """,
    "dict": """
        bufferingDepthMap convolutionOptions engineOptions gclOptions lstmOptions matmulOptions patterns
        prefetchBufferingDepthMap reportOptions
        """,
}

KNOWN: Dict[str, FrozenSet[str]] = {kind: frozenset(names.split()) for kind, names in _NAMES.items()}
