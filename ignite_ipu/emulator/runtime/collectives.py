"""Gradients reduced over the processes of a distributed run, through torch.distributed."""

from __future__ import annotations

from typing import Callable, List, Optional

import torch
import torch.distributed as dist
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from ignite_ipu.emulator.errors import backend_error

Reduce = Callable[[List[torch.Tensor]], None]


def reducer(processes: int) -> Optional[Reduce]:
    """Return what adds up tensors over `processes` processes in place; None for a single one.

    Raises:
        Error: No process group of that size exists. On a Pod PopRun connects the instances, here torch.distributed.
    """
    if processes == 1:
        return None
    if not (dist.is_available() and dist.is_initialized()):
        raise backend_error(
            f"The options describe {processes} distributed processes, but they are not connected. The emulator reduces "
            'gradients through torch.distributed: call torch.distributed.init_process_group("gloo") first.'
        )
    if dist.get_world_size() != processes:
        raise backend_error(
            f"The options describe {processes} distributed processes, but torch.distributed connects "
            f"{dist.get_world_size()}."
        )
    return _all_reduce


def _all_reduce(tensors: List[torch.Tensor]) -> None:
    flat = _flatten_dense_tensors(tensors)  # type: ignore[no-untyped-call]
    dist.all_reduce(flat)
    for tensor, reduced in zip(tensors, _unflatten_dense_tensors(flat, tensors)):  # type: ignore[no-untyped-call]
        tensor.copy_(reduced)
