"""What the emulator does with each name of PopTorch 3.3's API: does it, accepts it, or refuses it.

`python -m ignite_ipu.emulator.coverage` prints the documentation's page on it. The tests compare the names with the API
table, so that none is forgotten and none is made up.
"""

from __future__ import annotations

import enum
from typing import Dict, Iterator, List, NamedTuple, Optional


class Status(enum.Enum):
    """What happens to a name."""

    EMULATED = "emulated"
    """It does here what it does on an IPU."""
    ACCEPTED = "accepted"
    """It is validated and recorded, and has no meaning off the device."""
    REFUSED = "refused"
    """It raises, and says why."""


class Entry(NamedTuple):
    """One name.

    Attributes:
        name: In full, from `poptorch` on.
        status: What happens to it.
        note: What is accepted or refused, and why; for an emulated name what one should know, or "".
    """

    name: str
    status: Status
    note: str


_GUARDED = (
    "__init__ __call__ __deepcopy__ __getattr__ __getstate__ __repr__ __setattr__ __setstate__ checkIsFrozen "
    "createOrSet deleteIfExists exists set toDict update"
)
_STRATEGY = "__init__ backendOptions onEndTracing onStartTracing stage"
_PHASED = f"{_STRATEGY} phase useSeparateBackwardPhase"
_OPTIMIZER = (
    "get_state_dict has_state host_state_is_dirty ipu_state_is_dirty load_state_dict set_state_dict state_dict __init__"
)
_MOMENTS = "accum_type first_order_momentum_accum_type second_order_momentum_accum_type loss_scaling variable_attrs"

# Owner -> the names that it has.
_NAMES: Dict[str, str] = {
    "poptorch": """
        enums ops options optim profiling testing __version__ poptorchAtExit load DataLoader AsynchronousDataAccessor
        trainingModel inferenceModel ipuHardwareIsAvailable ipuHardwareVersion setLogLevel ICustomArgParser
        registerCustomArgParser MeanReductionStrategy DataLoaderMode SharingStrategy OutputMode ConnectionType
        HalfFloatCastingBehavior ReductionType SyncPattern MatMulSerializationMode Liveness OverlapMode AutoStage
        MultiConvPlanType CommGroupType VariableRetrievalMode ctc_beam_search_decoder ipu_print_tensor for_loop cond nop
        dynamic_slice dynamic_update recomputationCheckpoint serializedMatMul set_available_memory set_overlap_for_input
        set_overlap_for_output Block LegacyBeginBlockFn removeBlocks BeginBlock BlockFunction attributes_lists custom_op
        CPU identity_loss fps nearest MultiConv NameScope Attribute ConfigFileError TensorLocationSettings BlockId Stage
        Phase PipelinedExecution ShardedExecution ParallelPhasedExecution SerialPhasedExecution Options module_repr
        print createPoptorchError isRunningOnIpu accessAttributes getIpuTensorId PoplarExecutor registerPreCompileHook
        registerPostCompileHook Error RecoverableError UnrecoverableError importPoptorchMetadataFromFile
        """,
    "poptorch.DataLoader": """
        __init__ __len__ combinedBatchSize options terminate __del__ __iter__ batch_sampler_drop_last
        rebatched_drop_last
        """,
    "poptorch.AsynchronousDataAccessor": "__init__ terminate __del__ __len__ __iter__ __next__ rebatched_size",
    "poptorch.ICustomArgParser": "yieldTensors reconstruct",
    "poptorch.MeanReductionStrategy": "Running Post PostAndLoss",
    "poptorch.DataLoaderMode": "Sync Async AsyncRebatched",
    "poptorch.SharingStrategy": "SharedMemory FileSystem Fork ForkServer",
    "poptorch.OutputMode": "Final EveryN All Sum Default",
    "poptorch.ConnectionType": "Always OnDemand Never",
    "poptorch.HalfFloatCastingBehavior": "FloatDowncastToHalf HalfUpcastToFloat Default",
    "poptorch.ReductionType": "Sum Mean NoReduction",
    "poptorch.SyncPattern": "Full SinglePipeline ReplicaAndLadder",
    "poptorch.MatMulSerializationMode": "InputChannels ReducingDim OutputChannels Disabled",
    "poptorch.Liveness": "AlwaysLive OffChipAfterFwd OffChipAfterFwdNoOverlap OffChipAfterEachPhase",
    "poptorch.OverlapMode": "NoOverlap OverlapAccumulationLoop OverlapDeviceIterationLoop",
    "poptorch.AutoStage": "SameAsIpu AutoIncrement",
    "poptorch.MultiConvPlanType": "Parallel Serial",
    "poptorch.CommGroupType": "All Consecutive Orthogonal NoGrouping",
    "poptorch.VariableRetrievalMode": "OnePerGroup AllReplicas",
    "poptorch.Block": "useAutoId start __init__ __enter__ __exit__",
    "poptorch.LegacyBeginBlockFn": "__init__ __call__",
    "poptorch.CPU": "__init__ execute registerPersistentData __call__ in_shapes out_shapes inputs outputs",
    "poptorch.MultiConv": """
        __init__ availableMemoryProportions partialsTypes enableConvDithering planType perConvReservedTiles cycleBackOff
        __enter__ __exit__
        """,
    "poptorch.NameScope": "__init__ __enter__ __exit__ name",
    "poptorch.Attribute": "__init__ __enter__ __exit__",
    "poptorch.TensorLocationSettings": f"""
        {_GUARDED} minElementsForOffChip minElementsForReplicatedTensorSharding useOnChipStorage onChip
        useReplicatedTensorSharding useIOTilesToLoad useIOTilesToStore
        """,
    "poptorch.Stage": "__init__ blocks ipu",
    "poptorch.Phase": "__init__ stage ipus stages",
    "poptorch.PipelinedExecution": _STRATEGY,
    "poptorch.ShardedExecution": _STRATEGY,
    "poptorch.ParallelPhasedExecution": f"{_PHASED} sendTensorsOffChipAfterFwd",
    "poptorch.SerialPhasedExecution": f"{_PHASED} setTensorsLiveness",
    "poptorch.Options": f"""
        {_GUARDED} from_json sourceLocationExcludes appendToLocationExcludes showCompilationProgressBar loadFromFile
        relaxOptimizerAttributesChecks TensorLocations Distributed Jit Precision Training _Popart autoRoundNumIPUs
        deviceIterations setExecutionStrategy setAvailableMemoryProportion replicationFactor inputReplicaGrouping
        broadcastBuffers logDir maxRepeatLogs modelName enableExecutableCaching useIpuModel connectionType syncPattern
        useIpuId useOfflineIpuTarget anchorTensor outputMode defaultOutputMode randomSeed enableStableNorm
        enableSyntheticData logCycleCount enableProfiling disableModuleNamescope updatableNamedBuffers clone
        replication_factor input_group_size input_cgt broadcast_buffers device_iterations log_dir max_repeat_logs
        auto_round_num_ipus anchored_tensors output_mode output_return_period connection_type sync_pattern
        available_memory_proportion model_name use_model ipu_id ipu_version random_seed
        """,
    "poptorch.PoplarExecutor": """
        __init__ load_state_dict __repr__ __getattr__ model options getTensorNames getAnchoredTensor
        copyWeightsToHostIfNeeded copyWeightsToHost copyWeightsToDevice copyNamedBuffersToDevice setOptimizer compile
        loadExecutable save rng_state compileAndExport cycleCount compilationTime __call__ getPerfCounters
        getHostIpuLatency getComputeLatency getIpuHostLatency getLatency destroy isAttachedToDevice isCompiled
        detachFromDevice attachToDevice per_replica_params PoptorchParameter PoptorchBuffer
        """,
    "poptorch.PoplarExecutor.<parameter>": "replicaGrouping",
    "poptorch.optim": "VariableAttributes Optimizer SGD Adam AdamW RMSprop LAMB",
    "poptorch.optim.VariableAttributes": "__init__ isConstant markAsConstant markAsVariable",
    "poptorch.optim.Optimizer": _OPTIMIZER,
    "poptorch.optim.SGD": f"""
        {_OPTIMIZER} __getstate__ use_combined_accum loss_scaling accum_type velocity_accum_type max_grad_norm
        variable_attrs
        """,
    "poptorch.optim.Adam": f"{_OPTIMIZER} {_MOMENTS} __getstate__ max_grad_norm",
    "poptorch.optim.AdamW": f"{_OPTIMIZER} {_MOMENTS} __getstate__ bias_correction max_grad_norm",
    "poptorch.optim.RMSprop": f"{_OPTIMIZER} {_MOMENTS} __getstate__ use_tf_variant",
    "poptorch.optim.LAMB": f"{_OPTIMIZER} {_MOMENTS} __getstate__ step bias_correction max_weight_norm",
    "poptorch.profiling": "Channel",
    "poptorch.profiling.Channel": "__init__ instrument tracepoint",
    "poptorch.testing": "allclose",
    "poptorch.options": """
        _JitOptions _PrecisionOptions _TrainingOptions _PopartOptions _DistributedOptions _TensorLocationOptions
        _IExecutionStrategy _IPhasedExecution
        """,
    "poptorch.options._JitOptions": f"{_GUARDED} traceModel",
    "poptorch.options._PrecisionOptions": f"""
        {_GUARDED} halfFloatCasting runningStatisticsAlwaysFloat enableFloatingPointExceptions enableStochasticRounding
        setPartialsType
        """,
    "poptorch.options._TrainingOptions": f"""
        {_GUARDED} gradientAccumulation accumulationAndReplicationReductionType
        setMeanAccumulationAndReplicationReductionStrategy setAutomaticLossScaling setConvolutionDithering
        gradient_accumulation accumulation_and_replication_reduction_type
        meanAccumulationAndReplicationReductionStrategy
        """,
    "poptorch.options._PopartOptions": """
        __init__ __deepcopy__ checkIsFrozen set setEngineOptions setPatterns __repr__ options
        """,
    "poptorch.options._DistributedOptions": f"""
        {_GUARDED} disable setEnvVarNames configureProcessId processId numProcesses num_distributed_processes
        distributed_process_id ipuof_configs
        """,
    "poptorch.options._TensorLocationOptions": f"""
        {_GUARDED} numIOTiles setActivationLocation setWeightLocation setOptimizerLocation setAccumulatorLocation
        location_activation location_weight location_optimizer location_accumulator
        """,
    "poptorch.options._IExecutionStrategy": _STRATEGY,
    "poptorch.options._IPhasedExecution": _PHASED,
    "poptorch.Error": "message type location",
    "poptorch.RecoverableError": "message type location recovery_action",
    "poptorch.UnrecoverableError": "message type location",
    "<wrapped model class>": "copyWeightsToHostIfNeeded destroy __getattr__ state_dict",
}
_TOP = ("poptorch", "<wrapped model class>")

_MEMORY = "a CPU has no on-chip memory to plan; the values are the same wherever a tensor is kept"
_PLANNER = "it tunes how an IPU's tiles are used, which changes speed and rounding only"
_TRANSFER = "transfers take no time here, and the values are the same whenever they happen"
_GONE = "PopTorch 3.3 ignores it too: the front end that it tuned is gone"
_HOST_CLOCK = "Times are those of the host's clock."

# A name here stands for itself and for everything below it.
_ACCEPTED: Dict[str, str] = {
    "poptorch.poptorchAtExit": "nothing is left to shut down: devices live in this process",
    "poptorch.HalfFloatCastingBehavior": _GONE,
    "poptorch.options._PrecisionOptions.halfFloatCasting": f"a warning is logged; {_GONE}",
    "poptorch.options._PrecisionOptions.runningStatisticsAlwaysFloat": f"the type is checked; {_GONE}",
    "poptorch.options._PrecisionOptions.setPartialsType": f"the type is checked; {_PLANNER}",
    "poptorch.options._TrainingOptions.setConvolutionDithering": f"recorded; {_PLANNER}",
    "poptorch.SyncPattern": "there are no IPUs that would wait for each other",
    "poptorch.Options.syncPattern": "the type is checked; there are no IPUs that would wait for each other",
    "poptorch.Options.sync_pattern": "there are no IPUs that would wait for each other",
    "poptorch.MatMulSerializationMode": "serializedMatMul checks the mode and the factor; the product is the same",
    "poptorch.Liveness": _MEMORY,
    "poptorch.SerialPhasedExecution.setTensorsLiveness": f"the type is checked; {_MEMORY}",
    "poptorch.ParallelPhasedExecution.sendTensorsOffChipAfterFwd": f"the type is checked; {_MEMORY}",
    "poptorch.SerialPhasedExecution.useSeparateBackwardPhase": f"the type is checked; {_MEMORY}",
    "poptorch.ParallelPhasedExecution.useSeparateBackwardPhase": f"the type is checked; {_MEMORY}",
    "poptorch.options._IPhasedExecution.useSeparateBackwardPhase": f"the type is checked; {_MEMORY}",
    "poptorch.OverlapMode": _TRANSFER,
    "poptorch.set_overlap_for_input": f"every rule on where it may stand is checked; {_TRANSFER}",
    "poptorch.set_overlap_for_output": f"every rule on where it may stand is checked; {_TRANSFER}",
    "poptorch.set_available_memory": f"the share is checked and recorded on the operator; {_MEMORY}",
    "poptorch.recomputationCheckpoint": "the graph records it; nothing is computed twice here, so nothing need be kept",
    "poptorch.MultiConvPlanType": _PLANNER,
    "poptorch.MultiConv.availableMemoryProportions": f"checked; {_PLANNER}",
    "poptorch.MultiConv.partialsTypes": f"checked; {_PLANNER}",
    "poptorch.MultiConv.enableConvDithering": f"checked; {_PLANNER}",
    "poptorch.MultiConv.planType": f"checked; {_PLANNER}",
    "poptorch.MultiConv.perConvReservedTiles": f"checked; {_PLANNER}",
    "poptorch.MultiConv.cycleBackOff": f"checked; {_PLANNER}",
    "poptorch.Attribute": "recorded on each operator of the graph; only the IPU's compiler reads attributes",
    "poptorch.TensorLocationSettings": f"validated and readable; {_MEMORY}",
    "poptorch.options._TensorLocationOptions": f"validated and readable; {_MEMORY}",
    "poptorch.Options.TensorLocations": f"validated and readable; {_MEMORY}",
    "poptorch.Options.setAvailableMemoryProportion": f"keys at once and shares at compile are checked; {_MEMORY}",
    "poptorch.Options.available_memory_proportion": f"shares are checked at compile; {_MEMORY}",
    "poptorch.Options.enableStableNorm": "PyTorch's normalisations on the CPU are the stable ones already",
    "poptorch.options._PopartOptions.setPatterns": "the types are checked; there are no back-end patterns to switch",
    "poptorch.options._DistributedOptions.ipuof_configs": "no program sets it; fabrics are chosen below PopTorch",
}
_REFUSED: Dict[str, str] = {
    "poptorch.PoplarExecutor.cycleCount": "poptorch.Error, as on the IPU model: only IPUs count cycles",
    "poptorch.Options.logCycleCount": "poptorch.Error at compile where it is on, as on the IPU model",
    "poptorch.MeanReductionStrategy.PostAndLoss": "poptorch.Error at compile, as in PopTorch: its back end lacks it",
}
_REMARKS: Dict[str, str] = {
    "poptorch.ipuHardwareIsAvailable": "True up to the machine's IPUs, unless `POPTORCH_IPU_MODEL` selects IPU models.",
    "poptorch.ipuHardwareVersion": "2; AssertionError where `POPTORCH_IPU_MODEL` selects IPU models.",
    "poptorch.custom_op": "A Python function registered with `register_custom_op` stands in for the C++ operator.",
    "poptorch.load": "Unpickles a model only if this user saved it, or it is trusted: see the notes on saving.",
    "poptorch.importPoptorchMetadataFromFile": "Returns JSON.",
    "poptorch.Options.disableModuleNamescope": "Scopes are shown in reports; tensors are named without them.",
    "poptorch.options._PopartOptions.set": (
        "Names and types are checked at compile, as in PopTorch. Settings that other methods write act as those do; "
        "the others have no counterpart here."
    ),
    "poptorch.options._PopartOptions.setEngineOptions": "Those of `autoReport` act; the others are recorded.",
    "poptorch.Options.useOfflineIpuTarget": "The version is checked at compile.",
    "poptorch.Options.useIpuModel": "Takes no emulated IPUs, and switches executable caching off.",
    "poptorch.Options.useIpuId": "Ids are numbered as `gc-info` numbers them.",
    "poptorch.Options.enableSyntheticData": "Integer inputs become zeros, since they may be indices.",
    "poptorch.Options.enableExecutableCaching": "What an entry saves: see the notes on the cache.",
    "poptorch.Options.anchorTensor": (
        "Parameters, buffers, gradients and updated weights are named as in PopTorch, results of operators as "
        "`getTensorNames` lists them, not as on an IPU."
    ),
    "poptorch.PoplarExecutor.getPerfCounters": _HOST_CLOCK,
    "poptorch.PoplarExecutor.getLatency": _HOST_CLOCK,
    "poptorch.PoplarExecutor.getHostIpuLatency": _HOST_CLOCK,
    "poptorch.PoplarExecutor.getComputeLatency": _HOST_CLOCK,
    "poptorch.PoplarExecutor.getIpuHostLatency": _HOST_CLOCK,
}


def entries() -> Iterator[Entry]:
    """Yield every name, in the order of the page."""
    for owner in _TOP:
        yield entry(owner)
    for owner, names in _NAMES.items():
        for name in names.split():
            yield entry(f"{owner}.{name}")


def entry(name: str) -> Entry:
    """Return what happens to a name.

    Raises:
        KeyError: PopTorch's public API has no such name.
    """
    owner, _, last = name.rpartition(".")
    if name not in _TOP and last not in _NAMES[owner].split():
        raise KeyError(name)
    for table, status in ((_REFUSED, Status.REFUSED), (_ACCEPTED, Status.ACCEPTED)):
        note = _nearest(table, name)
        if note is not None:
            return Entry(name, status, note)
    return Entry(name, Status.EMULATED, _REMARKS.get(name, ""))


def page() -> str:
    """Return the documentation's page, in Markdown."""
    every = list(entries())
    count = {status: sum(each.status is status for each in every) for status in Status}
    lines = [
        "# Coverage of PopTorch's API",
        "",
        "This page is generated by `python -m ignite_ipu.emulator.coverage`; a test keeps it up to date.",
        "",
        f"PopTorch 3.3 has {len(every)} public names, members of classes included. Of these",
        f"{count[Status.EMULATED]} are *emulated*: they do here what they do on an IPU.",
        f"{count[Status.ACCEPTED]} are *accepted*: validated and recorded, without a meaning off the device.",
        f"{count[Status.REFUSED]} are *refused*: they raise, and say why.",
        "Nothing is accepted and silently ignored.",
        "",
        "`poptorch.autocast`, `poptorch.autocasting`, `Options.Precision.autocastEnabled` and `autocastPolicy` belong",
        "to the API before 3.3; they are emulated too.",
        "",
    ]
    for owner, group in _grouped(every).items():
        lines += [
            f"## `{owner}`" if owner else "## Modules and classes at the top",
            "",
            "| Name | Status | Note |",
            "|---|---|---|",
        ]
        lines += [f"| `{each.name}` | {each.status.value} | {_sentence(each.note)} |" for each in group]
        lines.append("")
    return "\n".join(lines)


def _nearest(table: Dict[str, str], name: str) -> Optional[str]:
    """Return the note on a name or on what it belongs to."""
    while name and name not in table:
        name = name.rpartition(".")[0]
    return table.get(name)


def _grouped(every: List[Entry]) -> Dict[str, List[Entry]]:
    groups: Dict[str, List[Entry]] = {}
    for each in every:
        groups.setdefault(each.name.rpartition(".")[0], []).append(each)
    return groups


def _sentence(note: str) -> str:
    return note[:1].upper() + note[1:] + ("" if note.endswith(".") or not note else ".")


if __name__ == "__main__":
    print(page(), end="")
