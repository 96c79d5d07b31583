"""Writes into arguments that PyTorch does not count: the running statistics of normalisations."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

from ignite_ipu.emulator.traced_tensor import IpuTensor

# The argument that says whether the statistics are updated, by operator.
_FLAGS = {"batch_norm": "training", "instance_norm": "use_input_stats"}


def hidden_writes(name: str, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> List[IpuTensor]:
    """Return the traced arguments that operator `name` writes into without PyTorch's version counters noticing."""
    flag = _FLAGS.get(name)
    if flag is None:
        return []
    named = {**dict(zip(("input", "running_mean", "running_var", "weight", "bias", flag), args)), **kwargs}
    updates = named.get(flag, flag == "use_input_stats")
    found = [named.get("running_mean"), named.get("running_var")] if updates else []
    return [value for value in found if isinstance(value, IpuTensor)]
