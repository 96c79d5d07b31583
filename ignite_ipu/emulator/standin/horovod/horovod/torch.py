"""Functions of `horovod.torch` over the emulator's instances."""

from __future__ import annotations

from typing import Any

from ignite_ipu.emulator.popdist.horovod import (
    Average,
    Sum,
    allgather,
    allreduce,
    broadcast,
    broadcast_,
    broadcast_parameters,
    grouped_allreduce,
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)

__all__ = [
    "Average",
    "Sum",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_",
    "broadcast_parameters",
    "grouped_allreduce",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "shutdown",
    "size",
]


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"module 'horovod.torch' has no attribute {name!r}: this is the PopTorch emulator's, which has the functions "
        "that PopTorch programs use beside PopDist. Install Horovod for the others."
    )
