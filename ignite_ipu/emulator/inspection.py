"""Names for tools that watch a forward while it is traced, such as `ignite-ipu check --run`; none is PopTorch's."""

from __future__ import annotations

from ignite_ipu.emulator.errors import Error, Refusal
from ignite_ipu.emulator.trace.active import IPU, IpuTensor, Trace, active
from ignite_ipu.emulator.trace.call_sites import identifier, name_of
from ignite_ipu.emulator.trace.operators import DOUBT, SWITCH, set_strict
from ignite_ipu.emulator.trace.refusals import DynamicOutputShape
from ignite_ipu.emulator.values.structures import leaves, map_leaves
from ignite_ipu.operators.table import canonical

__all__ = [
    "DOUBT",
    "IPU",
    "SWITCH",
    "DynamicOutputShape",
    "Error",
    "IpuTensor",
    "Refusal",
    "Trace",
    "active",
    "canonical",
    "identifier",
    "leaves",
    "map_leaves",
    "name_of",
    "set_strict",
]
