"""Capabilities: the one table of what happens to each name of PyTorch that speaks to a GPU.

`check` reports by it, `run` and `auto` substitute by it, and the documentation's page is generated from it. A new name
of a GPU is one entry of `gpu`.
"""

from __future__ import annotations

from ignite_ipu.capabilities.gpu import gpu_capability, gpu_functions
from ignite_ipu.capabilities.table import Capability, Treatment

__all__ = ["Capability", "Treatment", "gpu_capability", "gpu_functions"]
