"""Options of a front end that is gone."""

from __future__ import annotations

from ignite_ipu.emulator.logs import logger
from ignite_ipu.emulator.options.guarded import OptionsDict


class _JitOptions(OptionsDict):
    """`Options.Jit`."""

    def traceModel(self, trace_model: bool) -> _JitOptions:
        """Do nothing but warn: models are always captured by dispatch.

        Raises:
            ValueError: `trace_model` asks for the front end that is gone.
        """
        logger.warning("Jit.traceModel(%r) is deprecated: models are always captured by dispatch.", trace_model)
        if trace_model:
            raise ValueError("Tracing a model with torch.jit is no longer supported: remove Jit.traceModel(True).")
        return self
