"""PopART's enumerations, whose values PopTorch programs pass to `Options._Popart.set`.

As in PopART's Python, `int(member)` is the value, and a member equals no int.
"""

from __future__ import annotations

import enum
from typing import Dict, Type


class Enumeration(enum.Enum):
    """Base of PopART's enumerations."""

    def __int__(self) -> int:
        return int(self.value)

    def __index__(self) -> int:
        return int(self.value)


# Members count from 0; a second name of a member follows after a stroke.
_MEMBERS: Dict[str, str] = {
    "AccumulateOuterFragmentSchedule": "Scheduler Serial OverlapCycleOptimized OverlapMemoryOptimized",
    "AnchorReturnTypeId": "Final EveryN All Sum",
    "AutodiffStitchStrategy": "RecomputeMinimal RecomputeAllNonInputs AddFwdOutputs SafeAddFwdOutputs",
    "BatchSerializationBatchSchedule": "Scheduler Isomorphic OverlapOnIo OverlapOnCompute",
    "BatchSerializationMethod": "UnrollDynamic UnrollStatic Loop",
    "BatchSerializationTransformContext": "Fwd|Forward Bwd|Backward",
    "CommGroupType": "All Consecutive Orthogonal None",
    "DeviceConnectionType": "Always OnDemand Never",
    "DeviceType": "IpuModel Cpu Ipu OfflineIpu Sim",
    "ExecutionPhaseIOSchedule": "Preload OnDemand",
    "ExecutionPhaseSchedule": "Interleaving Batch BatchClusteredIO",
    "GradientTensorTrackingMethod": (
        "AllNonViewChangingGradientTensors ConvAndMatmulGradients GradientsOfUserSpecifiedTensors"
    ),
    "Instrumentation": "Outer Inner",
    "MeanReductionStrategy": "Running Post",
    "MergeVarUpdateType": "Off All AutoLoose AutoTight",
    "PatternsLevel": "NoPatterns Minimal Default All",
    "RecomputationType": "NoRecompute Standard NormOnly Pipeline RecomputeAll",
    "ReductionType": "Sum Mean NoReduction",
    "ReplicatedTensorSharding": "Off On",
    "SubgraphCopyingStrategy": "OnEnterAndExit JustInTime",
    "SyncPattern": "Full SinglePipeline ReplicaAndLadder",
    "SyntheticDataMode": "Off Zeros RandomNormal RandomUniform",
    "TensorStorage": "OnChip OffChip",
    "TileSet": "Compute IO",
    "VariableRetrievalMode": "OnePerGroup AllReduceReplicas AllReplicas",
    "VirtualGraphMode": "Off Manual Auto ExecutionPhases",
}


def _made(name: str, members: str) -> Type[Enumeration]:
    values = {each: number for number, names in enumerate(members.split()) for each in names.split("|")}
    made: Type[Enumeration] = Enumeration(name, values, module=__name__)  # type: ignore[call-arg, assignment]
    made.__doc__ = f"PopART's `{name}`."
    return made


ENUMERATIONS: Dict[str, Type[Enumeration]] = {name: _made(name, members) for name, members in _MEMBERS.items()}
globals().update(ENUMERATIONS)  # where pickles look for them

# The settings of `Options._Popart.set` that take a value of an enumeration, or several.
SETTINGS: Dict[str, Type[Enumeration]] = {
    setting: ENUMERATIONS[name]
    for setting, name in {
        "accumulateOuterFragmentSettings.schedule": "AccumulateOuterFragmentSchedule",
        "accumulationAndReplicationReductionType": "ReductionType",
        "autodiffSettings.stitchStrategy": "AutodiffStitchStrategy",
        "automaticLossScalingSettings.gradientTensorTrackingMethod": "GradientTensorTrackingMethod",
        "autoRecomputation": "RecomputationType",
        "batchSerializationSettings.batchSchedule": "BatchSerializationBatchSchedule",
        "batchSerializationSettings.method": "BatchSerializationMethod",
        "batchSerializationSettings.transformContext": "BatchSerializationTransformContext",
        "hardwareInstrumentations": "Instrumentation",
        "meanAccumulationAndReplicationReductionStrategy": "MeanReductionStrategy",
        "mergeVarUpdate": "MergeVarUpdateType",
        "patterns_level": "PatternsLevel",
        "subgraphCopyingStrategy": "SubgraphCopyingStrategy",
        "syntheticDataMode": "SyntheticDataMode",
        "virtualGraphMode": "VirtualGraphMode",
    }.items()
}
