"""torch.cuda.synchronize, empty_cache, memory statistics, events, streams, graphs.

They speak of a GPU. Beside an IPU they fail, or measure something else.

Remedy: Guard them with `if host_device().type == "cuda":`, or use ignite_ipu's profiling handlers.

Example:
      import torch
    + from ignite_ipu import host_device

    - torch.cuda.synchronize()
    + if host_device().type == "cuda":
    +     torch.cuda.synchronize()
"""

from __future__ import annotations

from ignite_ipu.migration.analysis.devices import is_guarded
from ignite_ipu.migration.analysis.tensor_methods import words
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity

SEVERITY, RUN = Severity.WARNING, Outcome.HANDLED
REWRITTEN = True

# Harmless without a GPU, or other rules' business.
_LEFT_OUT = words("is_available manual_seed manual_seed_all set_device current_device")
# What `run` answers, or leaves out.
_ANSWERED = words(
    "init is_initialized device_count get_device_name get_device_properties get_device_capability get_arch_list "
    "can_device_access_peer is_bf16_supported is_tf32_supported synchronize empty_cache "
    "memory_allocated max_memory_allocated memory_reserved max_memory_reserved memory_cached max_memory_cached "
    "memory_summary memory_stats memory_stats_as_nested_dict memory_snapshot mem_get_info list_gpu_processes "
    "utilization memory_usage temperature power_draw clock_rate "
    "Stream Event current_stream default_stream set_stream stream "
    "ipc_collect reset_peak_memory_stats reset_max_memory_allocated reset_max_memory_cached "
    "reset_accumulated_memory_stats set_per_process_memory_fraction device device_of nvtx.mark nvtx.range_push "
    "nvtx.range_pop nvtx.range_start nvtx.range_end profiler.start profiler.stop"
)


def check(program: Program) -> Hits:
    for call, name in program.calls("torch.cuda.*"):
        function = name[len("torch.cuda.") :]
        if function in _LEFT_OUT or function.startswith("amp."):
            continue
        answered = function in _ANSWERED or name.rsplit(".", 1)[1].endswith("Tensor")
        outcome = Outcome.HANDLED if answered else Outcome.REFUSED
        if not is_guarded(program, call):
            yield Hit(call, f"{name} speaks to a GPU", run=outcome)
        elif not answered and "ignite_ipu" not in program.names.imports.get("host_device", ""):
            yield Hit(call, f"{name} speaks to a GPU, which `run` says there is", severity=Severity.NOTE, run=outcome)
