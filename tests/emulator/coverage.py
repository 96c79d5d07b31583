"""The emulator's treatment of each name of PopTorch 3.3's API: emulated, accepted or refused.

`python -m tests.emulator.coverage` prints the documentation's page on it. The names are those of the API table.
"""

from __future__ import annotations

import enum
import json
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Optional

_TABLE = json.loads((Path(__file__).parent / "data" / "api.json").read_text(encoding="utf-8"))
NAMES = list(dict.fromkeys(entry["name"] for entry in _TABLE["entries"]))


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
        note: The accepted or refused uses, and the reason; for an emulated name a note, or "".
    """

    name: str
    status: Status
    note: str


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
    "poptorch.Attribute": "kept in no graph; only the IPU's compiler reads attributes",
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
    "poptorch.custom_op": (
        "A Python function registered with `register_custom_op` stands in for the C++ operator. Collective operators "
        "between replicas are built in."
    ),
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


# Names of the packages beside PopTorch, and its private ones, by module: exactly those that the modules export.
SDK: Dict[str, str] = {
    "popdist": (
        "checkNumIpusPerReplica execute_on_instances finalizeBackend getDeviceId getInstanceIndex "
        "getLocalInstanceIndex getNumInstances getNumIpusPerReplica getNumLocalReplicas getNumTotalReplicas "
        "getReplicaIndexOffset init initializeBackend isBackendInitialized isPopdistEnvSet synchronize"
    ),
    "popdist.poptorch": "Options",
    "horovod.torch": (
        "Average Sum allgather allreduce broadcast broadcast_ broadcast_parameters grouped_allreduce init "
        "is_initialized local_rank local_size rank shutdown size"
    ),
    "popart": (
        "AccumulateOuterFragmentSchedule AnchorReturnTypeId AutodiffStitchStrategy BatchSerializationBatchSchedule "
        "BatchSerializationMethod BatchSerializationTransformContext CommGroupType DeviceConnectionType DeviceType "
        "ExecutionPhaseIOSchedule ExecutionPhaseSchedule GradientTensorTrackingMethod Instrumentation "
        "MeanReductionStrategy MergeVarUpdateType PatternsLevel RecomputationType ReductionType "
        "ReplicatedTensorSharding SubgraphCopyingStrategy SyncPattern SyntheticDataMode TensorStorage TileSet "
        "VariableRetrievalMode VirtualGraphMode getLogger packageHash versionNumber versionString"
    ),
    "poptorch._args_parser": "ArgsParser",
    "poptorch._impl": (
        "createPoptorchError internal_cast isDispatchTracing rewrapModelIfNecessary unwrapModelIfNecessary"
    ),
    "poptorch._poplar_executor": "PoplarExecutor _OverwriteContextManager",
    "poptorch._utils": "combine_batch_tensors_gen",
    "poptorch.poptorch_core": (
        "Error RecoverableError UnrecoverableError getIpuTensorId importPoptorchMetadataFromFile ipuHardwareVersion "
        "poptorchAtExit setLogLevel"
    ),
    "torch.ops.poptorch": (
        "clear_attribute internal_cast nop pop_name_scope push_name_scope recomputation_checkpoint set_attribute "
        "set_available_memory"
    ),
}
_OWN_TESTS = """## PopTorch's own tests

PopTorch's public sources for SDK 3.3 have tests in Python. This package contains none of them. In November 2026 they
were run on the emulator from outside:

| suite | tests that pass, by behaviour |
|---|---|
| operators | 100 % |
| semantics | 98.6 % |

To repeat the runs, check out PopTorch's sources. Run a test file from its folder:

```bash
install='from ignite_ipu import emulator; emulator.install()'
python -c "${install}; import pytest; pytest.console_main()" options_test.py
```
"""
_NEVER = (
    "PopART's programs (`Builder`, sessions, `DeviceManager`) and `popdist.popart`. PopTorch programs do not use them.",
    "Libraries compiled for IPUs (`.so` files of custom operators, codelets, cppimport). A Python function replaces an "
    "operator. Custom patterns of a library have no effect on values and are not needed.",
    "V-IPU servers, partitions and several hosts, and `registerBackend` and `registerCommunicator` of PopDist.",
    "Horovod's optimizers and other reductions than mean and sum: PopTorch reduces gradients itself.",
    "Cycle counts, and times that say anything about an IPU's.",
)


def entries() -> Iterator[Entry]:
    """Yield every name, in the order of the table."""
    for name in NAMES:
        yield entry(name)


def entry(name: str) -> Entry:
    """Return what happens to a name."""
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
        "This page is generated by `python -m tests.emulator.coverage`; a test keeps it up to date.",
        "",
        f"PopTorch 3.3 has {len(every)} public names, members of classes included. Of these",
        f"{count[Status.EMULATED]} are *emulated*: they have the effect that they have on an IPU.",
        f"{count[Status.ACCEPTED]} are *accepted*: validated and recorded, without a meaning off the device.",
        f"{count[Status.REFUSED]} are *refused*: they raise an error with the reason.",
        "No name is accepted and silently ignored.",
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
    lines += ["## The SDK's other modules, and private names", ""]
    lines += [f"- `{module}`: {', '.join(f'`{name}`' for name in names.split())}" for module, names in SDK.items()]
    lines += ["", _OWN_TESTS]
    lines += ["## Outside the emulator", "", *(f"- {sentence}" for sentence in _NEVER), ""]
    return "\n".join(lines)


def _nearest(table: Dict[str, str], name: str) -> Optional[str]:
    """Return the note on a name or on its owner."""
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
