"""`torch.cuda` as a script sees it: there is one device, and what is done to it happens elsewhere.

Only calls from the script's own lines are answered so. A library that asks gets the true answer.
"""

from __future__ import annotations

import functools
from types import FunctionType, SimpleNamespace
from typing import Any, Dict

import torch

from ignite_ipu.deferred.graph.structure import words
from ignite_ipu.pipeline.costs.machine import Machine
from ignite_ipu.running.patches import Substitutes
from ignite_ipu.running.substitutes.cuda_streams import STREAMS, substitute_streams

_IGNORED_PROFILING = {
    "nvtx": ("mark", "range_push", "range_pop", "range_start", "range_end"),
    "profiler": ("start", "stop"),
}
_CONTEXTS = ("device", "device_of")
_GRAPHS = "an IPU runs one compiled program, which is its graph. Remove it"
_CLASSES: Dict[str, str] = dict.fromkeys(["ExternalStream", "CUDAGraph", "graph"], _GRAPHS)


class _Figures(Dict[str, int]):
    """Figures of a device's memory, all of which are 0."""

    def __missing__(self, key: str) -> int:
        return 0


_MEMORY = Machine().memory
# An IPU's memory is planned when a program is compiled: nothing is allocated while it runs.
_MEMORY_FIGURES: Dict[str, Any] = {
    **dict.fromkeys(
        words(
            "memory_allocated max_memory_allocated memory_reserved max_memory_reserved memory_cached "
            "max_memory_cached utilization memory_usage temperature power_draw clock_rate"
        ),
        0,
    ),
    "memory_summary": "",
    "list_gpu_processes": "",
    "memory_stats": _Figures(),
    "memory_stats_as_nested_dict": _Figures(),
    "memory_snapshot": [],
    "mem_get_info": (_MEMORY, _MEMORY),
}
_PROPERTIES = SimpleNamespace(
    name="IPU",
    major=0,
    minor=0,
    total_memory=_MEMORY,
    multi_processor_count=1472,
    is_integrated=False,
    is_multi_gpu_board=False,
)
_ANSWERS: Dict[str, Any] = {
    "is_available": True,
    "is_initialized": True,
    "device_count": 1,
    "current_device": 0,
    "get_device_name": "IPU",
    "get_device_properties": _PROPERTIES,
    "get_device_capability": (0, 0),
    "get_arch_list": [],
    "can_device_access_peer": False,
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
_REFUSED: Dict[str, str] = {
    "make_graphed_callables": _GRAPHS,
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
    "current_device_index": 0,
    "current_device_idx": 0,
    **dict.fromkeys(words("synchronize set_device_index set_device_idx empty_cache reset_peak_memory_stats")),
}


def substitute_cuda(substitutes: Substitutes) -> None:
    """Answer the script's questions to `torch.cuda` and `torch.accelerator` as if an IPU were a GPU."""

    def answer(module: Any, answers: Dict[str, Any]) -> None:
        for name, value in answers.items():
            if callable(getattr(module, name, None)):
                substitutes.answer(module, name, f"{module.__name__}.{name}()", value)

    noted = False

    def figure(value: Any, line: Any, original: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal noted
        if not noted:
            became = (
                f"{value!r}: an IPU's memory is planned when a program is compiled (`ignite-ipu plan` estimates it)"
            )
            substitutes.note(f"torch.cuda.{original.__name__}()", became, line)
            noted = True
        return value

    answer(torch.cuda, _ANSWERS)
    modules = [torch.cuda, torch.cuda.memory, *([torch.accelerator] if hasattr(torch, "accelerator") else [])]
    for module in modules:
        for name, value in _MEMORY_FIGURES.items():
            if callable(getattr(module, name, None)):
                substitutes.own_calls(module, name, functools.partial(figure, value), packages=False)
    substitute_streams(substitutes)
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
    for name in functions - _ANSWERS.keys() - _MEMORY_FIGURES.keys() - STREAMS:
        substitutes.refuse(torch.cuda, name, f"torch.cuda.{name}()", f"{_REFUSED.get(name, _OTHERS)}.")
    if hasattr(torch, "accelerator"):
        answer(torch.accelerator, _ACCELERATOR)
