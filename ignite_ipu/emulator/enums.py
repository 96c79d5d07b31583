"""The enumerations that PopTorch's options and operators take, with PopTorch's members and values."""

from __future__ import annotations

import enum

__all__ = [
    "AutoStage",
    "CommGroupType",
    "ConnectionType",
    "DataLoaderMode",
    "HalfFloatCastingBehavior",
    "Liveness",
    "MatMulSerializationMode",
    "MeanReductionStrategy",
    "MultiConvPlanType",
    "OutputMode",
    "OverlapMode",
    "ReductionType",
    "SharingStrategy",
    "SyncPattern",
    "VariableRetrievalMode",
]


class MeanReductionStrategy(enum.IntEnum):
    """Moment at which a mean reduction divides the gradients it accumulates and reduces."""

    Running = 0  # Keep a running mean while accumulating.
    Post = 1  # Sum everything, divide at the end.
    PostAndLoss = 2  # Divide by the accumulation factor with the loss and by the replicas at the end; refused.


class DataLoaderMode(enum.IntEnum):
    """In which process a data loader makes its batches."""

    Sync = 0  # In this one, as torch's loader does.
    Async = 1  # In one of its own, ahead of the model.
    AsyncRebatched = 2  # In one of its own, from smaller batches of several workers, so that no worker drops a tail.


class SharingStrategy(enum.IntEnum):
    """Way in which the process of an asynchronous data loader receives its data set and shares its tensors."""

    SharedMemory = 0  # Start a new process; tensors live in shared memory.
    FileSystem = 1  # Start a new process; tensors live in files, which spares file descriptors.
    Fork = 2  # Fork this process: nothing is pickled.
    ForkServer = 3  # Fork a clean helper process.


class OutputMode(enum.IntEnum):
    """Outputs that come back to the host, of those that a call computes."""

    Final = 0  # The last micro-batch of each replica.
    EveryN = 1  # Every N-th device iteration.
    All = 2  # Every micro-batch.
    Sum = 3  # The sum over iterations and accumulation steps, for each replica.
    Default = 4  # `Final` when training, `All` when inferring.


class ConnectionType(enum.IntEnum):
    """Moment at which a model takes hold of IPUs."""

    Always = 0  # Before it compiles.
    OnDemand = 1  # When it first runs.
    Never = 2  # Never: it compiles for machines elsewhere.


class HalfFloatCastingBehavior(enum.IntEnum):
    """Cast of mixed operands by the tracing front end, which 3.3 no longer has; kept so that old scripts import."""

    FloatDowncastToHalf = 0  # Cast the float operand down.
    HalfUpcastToFloat = 1  # Cast the half operand up.
    Default = 2  # As PyTorch does.


class ReductionType(enum.IntEnum):
    """Way in which values are combined."""

    Sum = 0  # Add.
    Mean = 1  # Add, then divide by their number.
    NoReduction = 2  # Leave apart.


class SyncPattern(enum.IntEnum):
    """IPUs that wait for each other at a synchronisation point."""

    Full = 0  # All for all.
    SinglePipeline = 1  # Those that talk to the host in turn wait for each other.
    ReplicaAndLadder = 2  # The two neighbours of a replica's ladder wait for each other.


class MatMulSerializationMode(enum.Enum):
    """Dimension of a matrix product that is cut into pieces computed one after the other."""

    InputChannels = "input_channels"  # Rows of the left operand.
    ReducingDim = "reducing_dim"  # The dimension summed over.
    OutputChannels = "output_channels"  # Columns of the right operand.
    Disabled = "none"  # None.


class Liveness(enum.IntEnum):
    """Moment at which a serially phased execution moves its tensors off the chip."""

    AlwaysLive = 0  # Never.
    OffChipAfterFwd = 1  # After the forward pass.
    OffChipAfterFwdNoOverlap = 2  # After the forward pass, without overlap of compute and transfer.
    OffChipAfterEachPhase = 3  # After every phase.


class OverlapMode(enum.Enum):
    """Over which loop a transfer between host and IPU overlaps with compute."""

    NoOverlap = "no_overlap"  # None.
    OverlapAccumulationLoop = "overlap_accumulation_loop"  # The accumulation loop.
    OverlapDeviceIterationLoop = "overlap_device_iteration_loop"  # The loop over device iterations.


class AutoStage(enum.IntEnum):
    """Rule by which blocks become stages when none are listed."""

    SameAsIpu = 0  # A block's stage has the number of its IPU.
    AutoIncrement = 1  # Each new block opens the next stage.


class MultiConvPlanType(enum.IntEnum):
    """Way in which several convolutions share the chip."""

    Parallel = 0  # At the same time.
    Serial = 1  # One after the other.


class CommGroupType(enum.IntEnum):
    """Replicas that form a group."""

    All = 0  # All of them form one.
    Consecutive = 1  # Runs of neighbours: with groups of 2, replicas 0 and 1, 2 and 3, ...
    Orthogonal = 2  # Equally spaced ones: with 4 replicas in groups of 2, replicas 0 and 2, 1 and 3.
    NoGrouping = 3  # Each is its own.


class VariableRetrievalMode(enum.IntEnum):
    """Copies of a grouped parameter that come back to the host."""

    OnePerGroup = 0  # One for each group of replicas.
    AllReplicas = 2  # One for each replica.
