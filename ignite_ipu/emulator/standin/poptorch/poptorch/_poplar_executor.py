"""Names that published programs use of PopTorch's private module of that name."""

from __future__ import annotations

from ignite_ipu.emulator.compiler.tracing import _OverwriteContextManager
from ignite_ipu.emulator.executor.executor import PoplarExecutor

__all__ = ["PoplarExecutor", "_OverwriteContextManager"]
