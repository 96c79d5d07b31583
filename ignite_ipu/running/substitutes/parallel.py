"""`DataParallel`, `DistributedDataParallel` and `torch.compile`: the model within, under the wrapper's names."""

from __future__ import annotations

import inspect
import os
from types import FrameType
from typing import Any, Callable, Dict, Optional, Protocol, cast

import torch
import torch.distributed
import torch.multiprocessing
from torch import nn

from ignite_ipu import backend
from ignite_ipu.capabilities.wrappers import SHARED_STATISTICS, WRAPPERS
from ignite_ipu.launched import local_processes
from ignite_ipu.program.torch_compiled import is_compiled
from ignite_ipu.running.patches import Substitutes
from ignite_ipu.running.script_code import FileLine
from ignite_ipu.session.data_parallel import wrap as wrap_model
from ignite_ipu.session.processes import PARALLEL, connected
from ignite_ipu.torch_names.modules import compiled_original

_BY_POPRUN = (
    "on a Pod PopRun starts the processes that train together. Start as many with `ignite-ipu launch --instances N -m "
    "ignite_ipu run SCRIPT`, where the call runs its function in each of them; or let it be one process, and pass "
    "--replication-factor for more IPUs."
)
_LAUNCHED = (
    "a launcher has started this process, and in each of its processes the call runs the function once, and waits for "
    "it. Let it be int(os.environ['LOCAL_WORLD_SIZE']) processes, or start the script without a launcher."
)


class Spawner(Protocol):
    """Starts processes in which the script's calls are substituted."""

    def start(self, substitutes: Substitutes, original: Callable[..., Any], arguments: Dict[str, Any]) -> Any:
        """Act as `torch.multiprocessing.spawn`, with its arguments by name."""


def substitute_parallel(substitutes: Substitutes, spawner: Optional[Spawner] = None) -> None:
    """Replace `DataParallel` wrappers by a single-device wrapper with the same `module.` prefix.

    Processes that a launcher has started are connected by gloo, and `DistributedDataParallel` averages their gradients.
    Spawned ones are connected and averaged alike. A single one is a call, and so is each one in a process that a
    launcher has started: these are the processes then.

    Args:
        spawner: Starts processes that the script spawns; None where they substitute by themselves.
    """
    number, launched = local_processes()
    if launched > 1:
        for module in (torch.cuda, getattr(torch, "accelerator", torch.cuda)):
            substitutes.answer(module, "device_count", f"{module.__name__}.device_count()", launched)

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

    def spawn(frame: FrameType, original: Any, *args: Any, **kwargs: Any) -> Any:
        line = substitutes.code.line_of(frame, packages=True)
        if line is None and str(frame.f_globals.get("__name__")).startswith("ignite.distributed."):
            line = substitutes.code.line_behind(frame)[0]
        if line is None:
            return original(*args, **kwargs)
        given = inspect.signature(original).bind(*args, **kwargs).arguments
        count, name = given.get("nprocs", 1), f"spawn(nprocs={given.get('nprocs', 1)})"
        joins = given.get("join", True)
        if joins and count == launched:
            became = "a call in this process, which drives all IPUs"
            if count > 1:
                became = f"a call in each of the {count} processes that the launcher has started"
            substitutes.note(name, became, line)
            return given["fn"](number, *given.get("args", ()))
        refuse_processes(substitutes, name, line)
        substitutes.note(name, f"{count} processes, each with its own IPUs", line)
        if given.get("start_method") == "fork":
            given["fn"] = _refusing(substitutes, given["fn"])
        elif spawner is not None:
            return spawner.start(substitutes, original, {**given, "start_method": "spawn"})
        return original(**given)

    def leave_unsynchronised(line: Any, original: Any, module: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        if max(connected()[1], launched) > 1:
            raise substitutes.refusal("convert_sync_batchnorm()", f"{SHARED_STATISTICS}.", line)
        name = "torch.nn.SyncBatchNorm.convert_sync_batchnorm"
        substitutes.note("convert_sync_batchnorm()", WRAPPERS[name].sentence, line)
        return module

    def normalise(norm: nn.SyncBatchNorm, input: torch.Tensor) -> torch.Tensor:
        """Act as the layer's `forward`, which asks for tensors of a GPU also where it is alone."""
        if norm.training and connected()[1] > 1:
            raise substitutes.refusal("SyncBatchNorm()", f"{SHARED_STATISTICS}.")
        return nn.BatchNorm1d.forward(cast(nn.BatchNorm1d, norm), input)

    substitutes.own_calls(nn.SyncBatchNorm, "convert_sync_batchnorm", leave_unsynchronised)
    substitutes.set(nn.SyncBatchNorm, "forward", normalise)
    for name in ("spawn", "start_processes"):
        substitutes.calls(torch.multiprocessing, name, spawn)
    for wrapper in PARALLEL:
        substitutes.own_calls(wrapper, "__init__", wrap)
    if torch.distributed.is_available():
        substitutes.own_calls(torch.distributed, "init_process_group", init_process_group)


def refuse_processes(substitutes: Substitutes, name: str, line: Optional[FileLine]) -> None:
    """Raise the refusal of a call that starts processes, unless this process may start some that train on emulators."""
    if local_processes()[1] > 1 or not backend.is_emulator():
        raise substitutes.refusal(name, _LAUNCHED if local_processes()[1] > 1 else _BY_POPRUN, line)


def _refusing(substitutes: Substitutes, function: Callable[..., Any]) -> Callable[..., None]:
    """Return a function for a forked process that also raises the refusals which the script's function has caught."""

    def call(*args: Any) -> None:
        function(*args)
        if substitutes.refusals:
            raise substitutes.refusals[0]

    return call


def within(module: nn.Module) -> nn.Module:
    """Return the model in a wrapper for several GPUs, or in that of `torch.compile`; any other module as it is."""
    found: Any = module
    while isinstance(found, PARALLEL) or is_compiled(found):
        found = compiled_original(found) if is_compiled(found) else found.module
    return cast(nn.Module, found)
