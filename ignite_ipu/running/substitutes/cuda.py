"""`torch.cuda` as a script sees it: there is one device, and what is done to it happens elsewhere.

Only calls from the script's own lines are answered so. A library that asks gets the true answer.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any, Dict

import torch

from ignite_ipu.deferred.graph.structure import words
from ignite_ipu.running.patches import Substitutes

_ANSWERS: Dict[str, Any] = {
    "is_available": True,
    "is_initialized": True,
    "device_count": 1,
    "current_device": 0,
    "get_device_name": "IPU",
    "is_bf16_supported": False,
    "is_tf32_supported": False,
    **dict.fromkeys(
        words(
            "init set_device synchronize empty_cache manual_seed manual_seed_all ipc_collect "
            "reset_peak_memory_stats reset_max_memory_allocated reset_max_memory_cached "
            "reset_accumulated_memory_stats set_per_process_memory_fraction"
        )
    ),
}
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
        words(
            "memory_allocated max_memory_allocated memory_reserved max_memory_reserved memory_summary "
            "memory_stats mem_get_info memory_cached max_memory_cached"
        ),
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
_ACCELERATOR = {
    "is_available": True,
    "device_count": 1,
    "current_accelerator": torch.device("cuda"),
    "synchronize": None,
}


def substitute_cuda(substitutes: Substitutes) -> None:
    """Answer the script's questions to `torch.cuda` and `torch.accelerator` as if an IPU were a GPU."""

    def answer(module: Any, answers: Dict[str, Any]) -> None:
        for name, value in answers.items():
            if callable(getattr(module, name, None)):
                substitutes.answer(module, name, f"{module.__name__}.{name}()", value)

    answer(torch.cuda, _ANSWERS)
    for submodule, names in _IGNORED_PROFILING.items():
        answer(getattr(torch.cuda, submodule), dict.fromkeys(names))
    for name in _CONTEXTS:
        kind = getattr(torch.cuda, name)
        substitutes.answer(kind, "__enter__", f"torch.cuda.{name}()")
        substitutes.own_calls(kind, "__exit__", lambda *args: None)
    for name, reason in _CLASSES.items():
        if hasattr(torch.cuda, name):
            kind = getattr(torch.cuda, name)
            constructor = "__new__" if "__new__" in vars(kind) else "__init__"
            substitutes.refuse(kind, constructor, f"torch.cuda.{name}()", f"{reason}.")
    functions = {name for name in torch.cuda.__all__ if isinstance(getattr(torch.cuda, name, None), FunctionType)}
    for name in functions - _ANSWERS.keys():
        substitutes.refuse(torch.cuda, name, f"torch.cuda.{name}()", f"{_REFUSED.get(name, _OTHERS)}.")
    if hasattr(torch, "accelerator"):
        answer(torch.accelerator, _ACCELERATOR)
