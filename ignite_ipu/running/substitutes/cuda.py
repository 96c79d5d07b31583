"""`torch.cuda` as a script sees it: there is one device, and what is done to it happens elsewhere.

Only calls from the script's own lines are answered so. A library that asks gets the true answer.
"""

from __future__ import annotations

import functools
import sys
from types import FunctionType
from typing import Any, Callable, Dict, Set

import torch

from ignite_ipu.running.journal import Journal
from ignite_ipu.running.ownership import ScriptCode
from ignite_ipu.running.patches import Patches

__all__ = ["substitute_cuda"]

_ANSWERS: Dict[str, Any] = {
    "is_available": True,
    "is_initialized": True,
    "device_count": 1,
    "current_device": 0,
    "get_device_name": "IPU",
    "is_bf16_supported": False,
    "is_tf32_supported": False,
}
_IGNORED = (
    "init",
    "set_device",
    "synchronize",
    "empty_cache",
    "manual_seed",
    "manual_seed_all",
    "ipc_collect",
    "reset_peak_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_accumulated_memory_stats",
    "set_per_process_memory_fraction",
)
_IGNORED_PROFILING = {
    "nvtx": ("mark", "range_push", "range_pop", "range_start", "range_end"),
    "profiler": ("start", "stop"),
}
_CONTEXTS = ("device", "device_of")
_NO_STREAMS = "an IPU runs one compiled program and has no streams. Remove it"
_CLASSES: Dict[str, str] = {
    **dict.fromkeys(["Stream", "ExternalStream", "CUDAGraph", "graph"], _NO_STREAMS),
    "Event": "an IPU has no events. Measure with time.perf_counter(), around lines that read a value of the step",
}
_REFUSED: Dict[str, str] = {
    **dict.fromkeys(
        [
            "memory_allocated",
            "max_memory_allocated",
            "memory_reserved",
            "max_memory_reserved",
            "memory_summary",
            "memory_stats",
            "mem_get_info",
            "memory_cached",
            "max_memory_cached",
        ],
        "an IPU's memory is planned when a program is compiled, so there is no such number. Remove the call; "
        "`ignite-ipu plan` estimates it",
    ),
    **dict.fromkeys(
        ["current_stream", "default_stream", "set_stream", "stream", "make_graphed_callables"],
        _NO_STREAMS,
    ),
    **dict.fromkeys(
        ["get_device_properties", "get_device_capability"], "they are a GPU's. Remove the question or its use"
    ),
    **dict.fromkeys(
        ["get_rng_state", "set_rng_state", "get_rng_state_all", "set_rng_state_all"],
        "random numbers are drawn on the device. Seed the run with torch.manual_seed",
    ),
}


_OTHERS = "an IPU has nothing like it. Remove the call"


def _functions() -> Set[str]:
    """Return the names of the public functions of `torch.cuda`."""
    return {name for name in torch.cuda.__all__ if isinstance(getattr(torch.cuda, name, None), FunctionType)}


def substitute_cuda(patches: Patches, code: ScriptCode, journal: Journal) -> None:
    """Answer the script's questions to `torch.cuda` and `torch.accelerator` as if an IPU were a GPU."""

    def replace(module: Any, prefix: str, name: str, make: Callable[..., Any], said: Any) -> None:
        original = getattr(module, name, None)
        if callable(original):
            patches.set(module, name, make(original, f"{prefix}.{name}()", said, code, journal))

    for name, answer in _ANSWERS.items():
        replace(torch.cuda, "torch.cuda", name, _answering, answer)
    for name in _IGNORED:
        replace(torch.cuda, "torch.cuda", name, _answering, None)
    for submodule, names in _IGNORED_PROFILING.items():
        for name in names:
            replace(getattr(torch.cuda, submodule), f"torch.cuda.{submodule}", name, _answering, None)
    for name in _CONTEXTS:
        original = getattr(torch.cuda, name)
        patches.set(original, "__enter__", _entering(original.__enter__, f"torch.cuda.{name}()", code, journal))
        patches.set(original, "__exit__", _leaving(original.__exit__, code))
    for name, reason in _CLASSES.items():
        if hasattr(torch.cuda, name):
            kind = getattr(torch.cuda, name)
            constructor = "__new__" if "__new__" in vars(kind) else "__init__"
            patches.set(
                kind, constructor, _refusing(getattr(kind, constructor), f"torch.cuda.{name}()", reason, code, journal)
            )
    for name in _functions() - {*_ANSWERS, *_IGNORED}:
        replace(torch.cuda, "torch.cuda", name, _refusing, _REFUSED.get(name, _OTHERS))
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is not None:
        for name, answer in (
            ("is_available", True),
            ("device_count", 1),
            ("current_accelerator", torch.device("cuda")),
            ("synchronize", None),
        ):
            replace(accelerator, "torch.accelerator", name, _answering, answer)


def _answering(original: Any, text: str, answer: Any, code: ScriptCode, journal: Journal) -> Any:
    @functools.wraps(original)
    def ask(*args: Any, **kwargs: Any) -> Any:
        line = code.line_of(sys._getframe(1))
        if line is None:
            return original(*args, **kwargs)
        journal.note(line, text, "left out" if answer is None else repr(answer))
        return answer

    return ask


def _refusing(original: Any, text: str, reason: str, code: ScriptCode, journal: Journal) -> Any:
    @functools.wraps(original)
    def refuse(*args: Any, **kwargs: Any) -> Any:
        line = code.line_of(sys._getframe(1))
        if line is None:
            return original(*args, **kwargs)
        raise journal.refuse(line, text, f"{reason}.")

    return refuse


def _entering(original: Any, text: str, code: ScriptCode, journal: Journal) -> Any:
    @functools.wraps(original)
    def __enter__(context: Any) -> Any:
        line = code.line_of(sys._getframe(1))
        if line is None:
            return original(context)
        journal.note(line, text, "left out")
        return None

    return __enter__


def _leaving(original: Any, code: ScriptCode) -> Any:
    @functools.wraps(original)
    def __exit__(context: Any, *error: Any) -> Any:
        return original(context, *error) if code.line_of(sys._getframe(1)) is None else None

    return __exit__
