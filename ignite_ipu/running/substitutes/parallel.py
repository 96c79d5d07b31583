"""`DataParallel` and `DistributedDataParallel` over one device: the model within, under the same names."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, ContextManager, Type

import torch
import torch.distributed
from torch import nn

from ignite_ipu.running.patches import Substitutes

__all__ = ["substitute_parallel", "within"]

_WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)

_REPLICAS = "one process drives all IPUs, and replicas of the model are asked for with --replication-factor."


def substitute_parallel(substitutes: Substitutes) -> None:
    """Let models that the script wraps for several GPUs be what they are on one: parameters are called `module...`.

    Several processes on NCCL are refused.
    """
    journal = substitutes.journal

    def wrap(
        line: Any, original: Callable[..., None], own: nn.Module, module: nn.Module, *args: Any, **kwargs: Any
    ) -> None:
        wrapper = _wrapper_of(type(own))
        if wrapper is nn.parallel.DistributedDataParallel and _processes() > 1:
            raise journal.refuse(line, "DistributedDataParallel", f"it trains in {_processes()} processes; {_REPLICAS}")
        journal.note(line, wrapper.__name__, "the model itself: one process drives all IPUs")
        nn.Module.__init__(own)
        own.__class__ = _on_one_device(type(own))
        own.module = module
        own.device_ids, own.dim = [], 0  # type: ignore[assignment]

    def init_process_group(
        line: Any, original: Callable[..., Any], backend: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        if "gloo" not in str(backend):
            raise journal.refuse(
                line,
                f"init_process_group({backend!r})",
                f"DistributedDataParallel trains on GPUs that this backend connects; {_REPLICAS}",
            )
        return original(backend, *args, **kwargs)

    for wrapper in _WRAPPERS:
        substitutes.own_calls(wrapper, "__init__", wrap)
    if torch.distributed.is_available():
        substitutes.own_calls(torch.distributed, "init_process_group", init_process_group)


def _processes() -> int:
    distributed = torch.distributed
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def within(module: nn.Module) -> nn.Module:
    """Return the model that a wrapper for several GPUs is around; any other module as it is."""
    while isinstance(module, _WRAPPERS):
        module = module.module
    return module


def _wrapper_of(kind: type) -> type:
    return next(each for each in _WRAPPERS if issubclass(kind, each))


def _on_one_device(kind: Type[Any]) -> Type[Any]:
    """Return a wrapper's class whose calls are its model's; scripts find it to be the wrapper that they made."""

    def forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        return self.module(*inputs, **kwargs)

    def no_sync(self: Any) -> ContextManager[None]:
        return contextlib.nullcontext()

    return type(kind.__name__, (kind,), {"forward": forward, "no_sync": no_sync, "__module__": kind.__module__})
