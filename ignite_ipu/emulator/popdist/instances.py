"""The instances of a job and their replicas, as PopRun describes them to each process in environment variables.

Nothing here communicates, so that data loaders' workers can use all of it.
"""

from __future__ import annotations

import os
from typing import Dict, NamedTuple

_TOTAL = "POPDIST_NUM_TOTAL_REPLICAS"
_LOCAL = "POPDIST_NUM_LOCAL_REPLICAS"
_IPUS = "POPDIST_NUM_IPUS_PER_REPLICA"
_OFFSET = "POPDIST_REPLICA_INDEX_OFFSET"
_LOCAL_INSTANCE = "POPDIST_LOCAL_INSTANCE_INDEX"
_UNIFORM = "POPDIST_UNIFORM_REPLICAS_PER_INSTANCE"


class Job(NamedTuple):
    """A job's size; its `replicas` are those of all instances together, which share them evenly."""

    instances: int
    replicas: int
    ipus_per_replica: int = 1

    def variables(self, instance: int) -> Dict[str, str]:
        """Return the variables that describe the job to one of its instances, all of which run on this machine.

        Those of Open MPI, which plain `poptorch.Options` reads, are among them.
        """
        local = self.replicas // self.instances
        numbers = {
            _TOTAL: self.replicas,
            _LOCAL: local,
            _IPUS: self.ipus_per_replica,
            _OFFSET: instance * local,
            _LOCAL_INSTANCE: instance,
            _UNIFORM: 1,
            "OMPI_COMM_WORLD_RANK": instance,
            "OMPI_COMM_WORLD_SIZE": self.instances,
            "OMPI_COMM_WORLD_LOCAL_RANK": instance,
            "OMPI_COMM_WORLD_LOCAL_SIZE": self.instances,
        }
        return {name: str(number) for name, number in numbers.items()}


def isPopdistEnvSet() -> bool:
    """Return whether PopRun has started this process."""
    return _TOTAL in os.environ


def getNumTotalReplicas() -> int:
    """Return the number of replicas in all instances together."""
    return _number(_TOTAL, 1)


def getNumLocalReplicas() -> int:
    """Return the number of replicas in this instance."""
    return _number(_LOCAL, 1)


def getNumIpusPerReplica() -> int:
    """Return the number of IPUs of each replica."""
    return _number(_IPUS, 1)


def checkNumIpusPerReplica(num_ipus_per_replica: int) -> bool:
    """Return whether each replica has this number of IPUs."""
    return getNumIpusPerReplica() == num_ipus_per_replica


def getReplicaIndexOffset() -> int:
    """Return the index of this instance's first replica among all replicas."""
    return _number(_OFFSET, 0)


def getLocalInstanceIndex() -> int:
    """Return the index of this instance among those of its host."""
    return _number(_LOCAL_INSTANCE, 0)


def getNumInstances() -> int:
    """Return the number of instances.

    Raises:
        RuntimeError: The instances have different numbers of replicas.
    """
    _check_uniform("getNumInstances")
    return getNumTotalReplicas() // getNumLocalReplicas()


def getInstanceIndex() -> int:
    """Return the index of this instance.

    Raises:
        RuntimeError: The instances have different numbers of replicas.
    """
    _check_uniform("getInstanceIndex")
    return getReplicaIndexOffset() // getNumLocalReplicas()


def getDeviceId(ipusPerReplica: int = 0) -> int:
    """Return the id, as `gc-info` numbers devices, of a device with the IPUs of this instance.

    Args:
        ipusPerReplica: IPUs of each replica; 0 means those that PopRun was given.

    Raises:
        RuntimeError: The machine has no device of that size for each instance before this one and for this one.
    """
    # Data loaders' workers and launchers need no more than the variables.
    from ignite_ipu.emulator.device.machine import device_ids, emulated_ipus

    needed = getNumLocalReplicas() * (ipusPerReplica or getNumIpusPerReplica())
    size = 1 << (needed - 1).bit_length()
    devices = [number for number, ipus in enumerate(device_ids(emulated_ipus())) if len(ipus) == size]
    index = getLocalInstanceIndex()
    if index >= len(devices):
        raise RuntimeError(
            f"Instance {index} of this host needs a device of {size} IPUs, and the machine of {emulated_ipus()} IPUs "
            f"has {len(devices)} of them. Use fewer instances, replicas or IPUs per replica."
        )
    return devices[index]


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable, str(default))
    try:
        return int(text)
    except ValueError:
        raise RuntimeError(f"Environment variable {variable} must be an integer, and it is {text!r}.") from None


def _check_uniform(function: str) -> None:
    if not _number(_UNIFORM, 1):
        raise RuntimeError(
            f"popdist.{function} needs the same number of replicas in each instance, and {_UNIFORM}=0 describes "
            "instances that differ. Use getNumTotalReplicas and getReplicaIndexOffset."
        )
