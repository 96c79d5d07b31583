"""Names of `torch.cuda` and `torch.accelerator`: a program finds one device, and the host executes its commands."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Dict, Iterator, Tuple

from ignite_ipu.capabilities.table import Capability, Treatment

CUDA, ACCELERATOR = "torch.cuda", "torch.accelerator"
_GRAPHS = "an IPU runs one compiled program, which is its graph. Remove it"
_RANDOM = "random numbers are drawn on the device. Seed the run with torch.manual_seed"
_OTHERS = "an IPU has nothing like it. Remove the call"
_NOTHING = "does nothing: the host does one thing after another"
_PLANNED = "an IPU's memory is planned when a program is compiled (`ignite-ipu plan` estimates it)"
IPU_MEMORY = 900 * 10**6
"""In-Processor-Memory of one IPU (GC200), in bytes."""


class _Figures(Dict[str, int]):
    """Figures of a device's memory, all of which are 0."""

    def __missing__(self, key: str) -> int:
        return 0


_PROPERTIES = SimpleNamespace(
    name="IPU",
    major=0,
    minor=0,
    total_memory=IPU_MEMORY,
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
}
_FIGURES: Dict[str, Any] = {
    **dict.fromkeys(("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"), 0),
    **dict.fromkeys(("memory_cached", "max_memory_cached", "utilization", "memory_usage"), 0),
    **dict.fromkeys(("temperature", "power_draw", "clock_rate"), 0),
    "memory_summary": "",
    "list_gpu_processes": "",
    "memory_stats": _Figures(),
    "memory_stats_as_nested_dict": _Figures(),
    "memory_snapshot": [],
    "mem_get_info": (IPU_MEMORY, IPU_MEMORY),
}
_LEFT_OUT = (
    *("init", "set_device", "synchronize", "empty_cache", "manual_seed", "manual_seed_all", "ipc_collect"),
    *("reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached"),
    *("reset_accumulated_memory_stats", "set_per_process_memory_fraction", "device", "device_of"),
    *("nvtx.mark", "nvtx.range_push", "nvtx.range_pop", "nvtx.range_start", "nvtx.range_end"),
    *("profiler.start", "profiler.stop"),
)
_HOST = {
    **dict.fromkeys(("Stream", "current_stream", "default_stream", "set_stream", "stream"), _NOTHING),
    "Event": "measures time on the host",
}
_REFUSED = {
    **dict.fromkeys(("ExternalStream", "CUDAGraph", "graph", "make_graphed_callables"), _GRAPHS),
    **dict.fromkeys(("get_rng_state", "set_rng_state", "get_rng_state_all", "set_rng_state_all"), _RANDOM),
}
_HARMLESS = frozenset(("is_available", "manual_seed", "manual_seed_all", "set_device", "current_device"))
_OF_ACCELERATOR: Dict[str, Any] = {
    "is_available": True,
    "device_count": 1,
    "current_device_index": 0,
    "current_device_idx": 0,
}
_LEFT_OUT_OF_ACCELERATOR = (
    "synchronize",
    "set_device_index",
    "set_device_idx",
    "empty_cache",
    "reset_peak_memory_stats",
)


def _entries() -> Iterator[Capability]:
    def of_cuda(name: str, treatment: Treatment, sentence: str = "", answer: Any = None) -> Capability:
        return Capability(f"{CUDA}.{name}", treatment, sentence, answer=answer, harmless=name in _HARMLESS)

    for name, answer in _ANSWERS.items():
        yield of_cuda(name, Treatment.ANSWERED, answer=answer)
    for name, figure in _FIGURES.items():
        yield of_cuda(name, Treatment.FIGURE, _PLANNED, figure)
        yield Capability(f"{ACCELERATOR}.{name}", Treatment.FIGURE, _PLANNED, answer=figure)
    for name in _LEFT_OUT:
        yield of_cuda(name, Treatment.LEFT_OUT)
    for name, sentence in _HOST.items():
        yield of_cuda(name, Treatment.HOST, sentence)
    for name, reason in _REFUSED.items():
        yield of_cuda(name, Treatment.REFUSED, reason)
    for name, answer in _OF_ACCELERATOR.items():
        yield Capability(f"{ACCELERATOR}.{name}", Treatment.ANSWERED, answer=answer, harmless=True)
    for name in _LEFT_OUT_OF_ACCELERATOR:
        yield Capability(f"{ACCELERATOR}.{name}", Treatment.LEFT_OUT)


_TABLE: Dict[str, Capability] = {entry.name: entry for entry in _entries()}


def gpu_functions(module: str, *treatments: Treatment) -> Iterator[Capability]:
    """Yield the entries of a module, `CUDA` or `ACCELERATOR`, and those of its submodules, with some treatments."""
    return (entry for entry in _TABLE.values() if entry.name.startswith(f"{module}.") and entry.treatment in treatments)


def gpu_capability(name: str) -> Capability:
    """Return the entry of a name of `torch.cuda`, without the module; a refusal where the table has none."""
    full = f"{CUDA}.{name}"
    return _TABLE.get(full) or Capability(full, *_default(name), listed=False)


def _default(name: str) -> Tuple[Treatment, str]:
    # torch.cuda.FloatTensor and its like are types of the host.
    return (Treatment.HOST, "is the host's type") if name.endswith("Tensor") else (Treatment.REFUSED, _OTHERS)
