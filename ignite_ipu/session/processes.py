"""Several processes that train one model together, each on its own IPUs.

A process is a rank for `ignite.distributed` and `torch.distributed`; the replicas inside one process are not. Gradients
are reduced by PopTorch over the replicas of all processes; metrics, barriers and samplers go through
`torch.distributed`, so it has to be initialised: `idist.Parallel(backend="gloo")` does that. It comes before the data
is divided among the processes, so that nothing here can correct it.
"""

from __future__ import annotations

import os
from typing import Any, Tuple

import torch.distributed as dist
from torch import nn

from ignite_ipu import backend
from ignite_ipu.errors import ProcessesError
from ignite_ipu.poptorch_types import Options
from ignite_ipu.program.torch_compiled import is_compiled, leave_out_compiler
from ignite_ipu.torch_names.modules import compiled_original

PARALLEL = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def connected() -> Tuple[int, int]:
    """Return this process's rank and the number of processes that `torch.distributed` connects; 0 and 1 without it."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def describe_processes(options: Options) -> None:
    """Make the options speak of the processes that are connected.

    On the emulator the options are completed. On a Pod PopRun starts the processes, and its options have their numbers.
    """
    rank, processes = connected()
    _refuse_launched(processes)
    described: int = options.Distributed.numProcesses
    if processes == described:
        return
    if processes == 1:
        raise ProcessesError(
            f"The options describe {described} processes, but torch.distributed connects none, so that metrics and "
            'samplers would not know of each other. Run the program under idist.Parallel(backend="gloo"), or call '
            "options.Distributed.disable() if this process trains alone."
        )
    if described != 1 or not backend.is_emulator():
        raise ProcessesError(
            f"torch.distributed connects {processes} processes, but the options describe {described}: gradients "
            "would not be reduced over all of them. On a Pod start the processes with `ignite-ipu launch`, which runs "
            "PopRun, and pass options=popdist.poptorch.Options()."
        )
    options.Distributed.configureProcessId(rank, processes)


def train_alone(options: Options) -> None:
    """Make the options describe one process, for a program whose gradients are of this process alone.

    Raises:
        ProcessesError: A launcher has started several processes, which are not connected.
    """
    _refuse_launched(connected()[1])
    if options.Distributed.numProcesses == 1:
        return
    try:
        options.Distributed.disable()
    except RuntimeError as error:
        raise ProcessesError(
            "The options are popdist.poptorch.Options, whose programs all processes train together, and the gradients "
            "of this one are of its own process. Leave the options out: PopRun's settings are found without them. To "
            "train one model in all processes, put it in DistributedDataParallel."
        ) from error


def _refuse_launched(processes: int) -> None:
    launched = os.environ.get("WORLD_SIZE", "1")
    if processes == 1 and launched.isdigit() and int(launched) > 1:
        raise ProcessesError(
            f"A launcher has started {launched} processes (WORLD_SIZE), but torch.distributed connects none, so that "
            'each would train its own model on all of the data. Run the program under idist.Parallel(backend="gloo"), '
            "or unset WORLD_SIZE if this process is to train alone."
        )


def unwrapped(model: Any) -> Any:
    """Return the model inside `DataParallel`, `DistributedDataParallel` and `torch.compile`; any other as it is."""
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel):
            model = model.module
        elif isinstance(model, nn.DataParallel) and len(model.device_ids) < 2:
            model = model.module  # which is its only effect in PyTorch, on one device or none
        elif is_compiled(model):
            leave_out_compiler(model)
            model = compiled_original(model)
        elif isinstance(model, nn.DataParallel):
            raise ProcessesError(
                f"The model is in DataParallel over the devices {list(model.device_ids)}, which spreads a batch over "
                "them. Pass the model inside (model.module), and replication_factor=... for as many replicas on IPUs."
            )
        else:
            return model
