"""`DataParallel`, `DistributedDataParallel` and `torch.compile`: the model within, under the wrapper's names."""

from __future__ import annotations

import os
from typing import Any, Callable, cast

import torch
import torch.distributed
import torch.multiprocessing
from torch import nn

from ignite_ipu.capabilities.wrappers import REPLICAS, WRAPPERS
from ignite_ipu.running.patches import Substitutes
from ignite_ipu.session.data_parallel import wrap as wrap_model
from ignite_ipu.session.processes import PARALLEL, connected
from ignite_ipu.session.torch_compiled import is_compiled
from ignite_ipu.torch_names.modules import compiled_original


def substitute_parallel(substitutes: Substitutes) -> None:
    """Replace `DataParallel` wrappers by a single-device wrapper with the same `module.` prefix.

    Processes that a launcher has started are connected by gloo, and `DistributedDataParallel` averages their gradients.
    Spawned ones are refused, but a single one, which is a call.
    """

    def wrap(
        line: Any, original: Callable[..., None], own: nn.Module, module: nn.Module, *args: Any, **kwargs: Any
    ) -> None:
        wrapper = next(each for each in PARALLEL if isinstance(own, each))
        processes = connected()[1] if wrapper is nn.parallel.DistributedDataParallel else 1
        became = WRAPPERS[f"torch.nn.parallel.{wrapper.__name__}"].sentence
        if processes > 1:
            became = f"the model itself, whose gradients are averaged over {processes} processes"
        substitutes.note(wrapper.__name__, became, line)
        wrap_model(own, module, *args, **kwargs)

    def init_process_group(
        line: Any, original: Callable[..., Any], backend: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        if "gloo" not in str(backend):
            processes = int(kwargs.get("world_size") or os.environ.get("WORLD_SIZE") or 1)
            became = "one process on gloo" if processes == 1 else f"{processes} processes on gloo"
            substitutes.note(f"init_process_group({backend!r})", became, line)
            backend = "gloo"
        kwargs.pop("device_id", None)
        return original(backend, *args, **kwargs)

    def spawn(
        line: Any, original: Any, fn: Callable[..., Any], args: Any = (), nprocs: int = 1, *m: Any, **k: Any
    ) -> Any:
        if nprocs != 1 or False in (*m[:1], k.get("join", True)):
            raise substitutes.refusal(
                f"spawn(nprocs={nprocs})", f"models trained in its processes would be lost: {REPLICAS}.", line
            )
        substitutes.note("spawn(nprocs=1)", "a call in this process, which drives all IPUs", line)
        return fn(0, *args)

    for name in ("spawn", "start_processes"):
        substitutes.own_calls(torch.multiprocessing, name, spawn)
    for wrapper in PARALLEL:
        substitutes.own_calls(wrapper, "__init__", wrap)
    if torch.distributed.is_available():
        substitutes.own_calls(torch.distributed, "init_process_group", init_process_group)


def within(module: nn.Module) -> nn.Module:
    """Return the model in a wrapper for several GPUs, or in that of `torch.compile`; any other module as it is."""
    found: Any = module
    while isinstance(found, PARALLEL) or is_compiled(found):
        found = compiled_original(found) if is_compiled(found) else found.module
    return cast(nn.Module, found)
