"""Types of what PopTorch gives this library: members that are not here are not used of it."""

from __future__ import annotations

import enum
from typing import Any, Dict, Iterator, List, Mapping, Optional, Protocol, Type

import torch
from torch import nn

__all__ = ["DataLoader", "DeviceOptimizer", "Executor", "Options", "PopTorch"]

State = Dict[str, Any]


class Enumeration(Protocol):
    """Class of an enumeration."""

    @property
    def __members__(self) -> Mapping[str, enum.Enum]: ...

    def __call__(self, value: Any) -> enum.Enum: ...

    def __getitem__(self, name: str) -> enum.Enum: ...

    def __iter__(self) -> Iterator[enum.Enum]: ...


class OutputModes(Enumeration, Protocol):
    """`poptorch.OutputMode`."""

    All: enum.Enum
    Default: enum.Enum
    EveryN: enum.Enum
    Final: enum.Enum
    Sum: enum.Enum


class DataLoaderModes(Enumeration, Protocol):
    """`poptorch.DataLoaderMode`."""

    Sync: enum.Enum
    Async: enum.Enum


class ReductionTypes(Enumeration, Protocol):
    """`poptorch.ReductionType`."""

    Sum: enum.Enum


class ConnectionTypes(Enumeration, Protocol):
    """`poptorch.ConnectionType`."""

    Never: enum.Enum


class _Values(Protocol):
    """Members that all groups of options have."""

    def exists(self, name: str) -> bool: ...

    def set(self, **values: Any) -> Any: ...


class TrainingOptions(Protocol):
    """`poptorch.Options.Training`."""

    gradient_accumulation: int
    accumulation_and_replication_reduction_type: enum.Enum

    def gradientAccumulation(self, gradient_accumulation: int) -> Any: ...

    def accumulationAndReplicationReductionType(self, reduction_type: Any) -> Any: ...

    def setAutomaticLossScaling(self, enabled: bool) -> Any: ...


class DistributedOptions(Protocol):
    """`poptorch.Options.Distributed`."""

    @property
    def numProcesses(self) -> int: ...

    def configureProcessId(self, process_id: int, num_processes: int) -> Any: ...

    def disable(self) -> Any: ...


class TensorLocationOptions(_Values, Protocol):
    """`poptorch.Options.TensorLocations`."""

    location_optimizer: Dict[str, int]

    def setActivationLocation(self, location: Any) -> Any: ...

    def setWeightLocation(self, location: Any) -> Any: ...

    def setOptimizerLocation(self, location: Any) -> Any: ...

    def setAccumulatorLocation(self, location: Any) -> Any: ...


class PopartOptions(Protocol):
    """`poptorch.Options._Popart`."""

    def set(self, key: str, value: Any) -> Any: ...


class Options(_Values, Protocol):
    """`poptorch.Options`."""

    device_iterations: int
    replication_factor: int
    input_group_size: int
    output_mode: Any
    output_return_period: int
    auto_round_num_ipus: bool
    connection_type: Any
    use_model: bool
    random_seed: int

    @property
    def Training(self) -> TrainingOptions: ...

    @property
    def Distributed(self) -> DistributedOptions: ...

    @property
    def TensorLocations(self) -> TensorLocationOptions: ...

    @property
    def _Popart(self) -> PopartOptions: ...

    def deviceIterations(self, device_iterations: int) -> Any: ...

    def replicationFactor(self, replication_factor: int) -> Any: ...

    def outputMode(self, output_mode: Any, output_return_period: Optional[int] = None) -> Any: ...

    def defaultOutputMode(self) -> bool: ...

    def randomSeed(self, random_seed: int) -> Any: ...

    def autoRoundNumIPUs(self, auto_round_num_ipus: bool = True) -> Options: ...

    def relaxOptimizerAttributesChecks(self, relax: bool = True) -> Any: ...

    def setExecutionStrategy(self, strategy: Any) -> Any: ...

    def anchorTensor(self, short_name: str, long_name: str) -> Any: ...

    def enableProfiling(self, profile_dir: Optional[str] = None) -> Any: ...

    def broadcastBuffers(self, broadcast: bool) -> Any: ...

    def showCompilationProgressBar(self, show: bool) -> Any: ...

    def toDict(self) -> Dict[str, Any]: ...

    def clone(self) -> Options: ...


class VariableAttributes(Protocol):
    """`poptorch.optim.VariableAttributes`."""

    def isConstant(self, attr: str) -> bool: ...

    def markAsConstant(self, attr: str) -> None: ...

    def markAsVariable(self, attr: str) -> None: ...


class DeviceOptimizer(Protocol):
    """An optimizer of `poptorch.optim`, whose update is compiled."""

    param_groups: List[Dict[str, Any]]
    ipu_state_is_dirty: bool
    host_state_is_dirty: bool

    @property
    def variable_attrs(self) -> VariableAttributes: ...

    def state_dict(self) -> State: ...

    def get_state_dict(self) -> State: ...

    def set_state_dict(self, state: State) -> None: ...


class Executor(Protocol):
    """`poptorch.PoplarExecutor`: a module compiled for IPUs."""

    rng_state: Any

    @property
    def options(self) -> Options: ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    def compile(self, *args: Any, **kwargs: Any) -> None: ...

    def isCompiled(self) -> bool: ...

    def attachToDevice(self) -> None: ...

    def detachFromDevice(self) -> None: ...

    def isAttachedToDevice(self) -> bool: ...

    def copyWeightsToDevice(self) -> None: ...

    def copyWeightsToHostIfNeeded(self) -> bool: ...

    def setOptimizer(self, optimizer: Any) -> None: ...

    def getAnchoredTensor(self, short_name: str) -> torch.Tensor: ...

    def destroy(self) -> None: ...


class TensorLocationSettings(Protocol):
    """`poptorch.TensorLocationSettings`."""

    def useOnChipStorage(self, use: bool = True) -> Any: ...

    def useReplicatedTensorSharding(self, use: bool = True) -> Any: ...


class DataLoader(Protocol):
    """`poptorch.DataLoader`, beside what it has of torch's."""

    @property
    def combinedBatchSize(self) -> Optional[int]: ...

    @property
    def options(self) -> Options: ...

    def __iter__(self) -> Iterator[Any]: ...

    def __len__(self) -> int: ...


class Optimizers(Protocol):
    """`poptorch.optim`; its other classes are found by the names of their kinds."""

    Optimizer: Type[Any]


class Blocks(Protocol):
    """`poptorch.Block`."""

    def start(self, user_id: str, ipu_id: Optional[int] = None) -> Any: ...


class PopTorch(Protocol):
    """The module."""

    __version__: str
    __file__: Optional[str]
    Options: Type[Options]
    TensorLocationSettings: Type[TensorLocationSettings]
    DataLoader: Type[DataLoader]
    AsynchronousDataAccessor: Type[Any]
    RecoverableError: Type[Exception]
    UnrecoverableError: Type[Exception]
    optim: Optimizers
    Block: Blocks

    @property
    def OutputMode(self) -> OutputModes: ...

    @property
    def DataLoaderMode(self) -> DataLoaderModes: ...

    @property
    def ReductionType(self) -> ReductionTypes: ...

    @property
    def ConnectionType(self) -> ConnectionTypes: ...

    def trainingModel(self, model: nn.Module, *, options: Any, optimizer: Any) -> Executor: ...

    def inferenceModel(self, model: nn.Module, *, options: Any) -> Executor: ...

    def ipuHardwareIsAvailable(self, num_ipus: int = 1) -> bool: ...

    def ipuHardwareVersion(self) -> Any: ...

    def isRunningOnIpu(self) -> bool: ...

    def identity_loss(self, x: torch.Tensor, reduction: str) -> torch.Tensor: ...

    def Stage(self, *block_ids: str) -> Any: ...

    def Phase(self, *args: Any) -> Any: ...

    def PipelinedExecution(self, *args: Any) -> Any: ...

    def ShardedExecution(self, *args: Any) -> Any: ...

    def SerialPhasedExecution(self, *args: Any) -> Any: ...

    def ParallelPhasedExecution(self, *args: Any) -> Any: ...
