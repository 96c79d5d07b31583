"""`popdist.poptorch.Options`: options of a model in an instance that PopRun has started."""

from __future__ import annotations

from typing import Any, NoReturn, Optional

from ignite_ipu.emulator.options import Options as PlainOptions
from ignite_ipu.emulator.options.guarded import OptionsDict
from ignite_ipu.emulator.options.parts import _DistributedOptions
from ignite_ipu.emulator.popdist.instances import (
    checkNumIpusPerReplica,
    getInstanceIndex,
    getNumInstances,
    getNumIpusPerReplica,
    getNumLocalReplicas,
    isPopdistEnvSet,
)


class Options(PlainOptions):
    """`poptorch.Options` with the replicas of this instance, and its index and the number of instances.

    PopRun decides on all of these, so that the setters of them raise.

    Args:
        ipus_per_replica: IPUs of each replica; None means those that PopRun was given.

    Raises:
        RuntimeError: PopRun was given another number of IPUs for each replica, or a setter is called.
    """

    _ipus_per_replica: int

    def __init__(self, ipus_per_replica: Optional[int] = None) -> None:
        if ipus_per_replica is None:
            ipus_per_replica = getNumIpusPerReplica()
        elif isPopdistEnvSet() and not checkNumIpusPerReplica(ipus_per_replica):
            raise RuntimeError(
                f"popdist.poptorch.Options was given ipus_per_replica={ipus_per_replica}, and PopRun was given "
                f"{getNumIpusPerReplica()}. Both must be the same: pass --ipus-per-replica={ipus_per_replica} to "
                "PopRun."
            )
        super().__init__()
        self.set(replication_factor=getNumLocalReplicas())
        self._declare(_distributed=_Instance(getInstanceIndex(), getNumInstances()), _ipus_per_replica=ipus_per_replica)

    def useIpuId(self, ipu_id: int) -> NoReturn:
        """Raise RuntimeError: PopRun chooses the device."""
        _refuse("useIpuId")

    def replicationFactor(self, replication_factor: int) -> PlainOptions:
        """Raise RuntimeError: PopRun chooses the number of replicas."""
        if "_ipus_per_replica" in self.__dict__:
            _refuse("replicationFactor")
        # The environment's default for plain options, which PopRun's number replaces.
        return super().replicationFactor(replication_factor)


class _Instance(_DistributedOptions):
    """`Options.Distributed` of an instance."""

    def __init__(self, index: int, instances: int) -> None:
        # Without the constructor of the base class, which calls `setEnvVarNames`.
        OptionsDict.__init__(self, num_distributed_processes=instances, distributed_process_id=index, ipuof_configs={})

    def disable(self) -> NoReturn:
        """Raise RuntimeError: PopRun chooses the number of instances."""
        _refuse("Distributed.disable")

    def setEnvVarNames(self, var_num_processes: str, var_process_id: str) -> NoReturn:
        """Raise RuntimeError: PopRun's variables describe the instance."""
        _refuse("Distributed.setEnvVarNames")

    def configureProcessId(self, process_id: int, num_processes: int) -> NoReturn:
        """Raise RuntimeError: PopRun numbers the instances."""
        _refuse("Distributed.configureProcessId")


def _refuse(name: str, *_: Any) -> NoReturn:
    raise RuntimeError(
        f"Cannot call `{name}` with popdist.poptorch.Options: PopRun's arguments decide on it. Use --num-replicas, "
        "--num-instances and --ipus-per-replica of poprun."
    )
