"""Variables by which a launcher describes a process: PopRun, torchrun, `accelerate launch` or `ignite-ipu launch`.

PopRun describes a process in the variables of Open MPI, which PopTorch reads. `torch.distributed` reads others.
"""

from __future__ import annotations

import os
from typing import Dict, Mapping, Tuple

_PORT = "29500"
_MEANINGS = {
    "RANK": "OMPI_COMM_WORLD_RANK",
    "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
    "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
    "LOCAL_WORLD_SIZE": "OMPI_COMM_WORLD_LOCAL_SIZE",
}
_REPLICAS = "POPDIST_NUM_TOTAL_REPLICAS"
_IPUS = "POPDIST_NUM_IPUS_PER_REPLICA"


def rendezvous(variables: Mapping[str, str]) -> Dict[str, str]:
    """Return the variables of `torch.distributed` that are missing, from those of PopRun.

    Processes of one host meet there; those of several need MASTER_ADDR, which `ignite-ipu launch --hosts` sets.
    """
    found = {ours: variables[theirs] for ours, theirs in _MEANINGS.items() if theirs in variables}
    if found:
        found["MASTER_PORT"] = _PORT
        if found.get("LOCAL_WORLD_SIZE", found.get("WORLD_SIZE")) == found.get("WORLD_SIZE"):
            found["MASTER_ADDR"] = "127.0.0.1"
    return {name: value for name, value in found.items() if name not in variables}


def describe_to_torch() -> None:
    """Set the variables of `torch.distributed` that are missing in a process that PopRun has started."""
    if is_instance():
        os.environ.update(rendezvous(os.environ))


def local_processes() -> Tuple[int, int]:
    """Return this process's number on its host, and the number of processes that a launcher has started there."""
    variables = {**rendezvous(os.environ), **os.environ}
    return int(variables.get("LOCAL_RANK", "0")), int(variables.get("LOCAL_WORLD_SIZE", "1"))


def is_instance() -> bool:
    """Return whether PopRun has started this process, or a launcher that describes it as PopRun does."""
    return _REPLICAS in os.environ


def ipus_per_replica() -> int:
    """Return how many IPUs PopRun gives each replica; 1 elsewhere."""
    return int(os.environ.get(_IPUS, "1"))
