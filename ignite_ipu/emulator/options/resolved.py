"""The options of one executor."""

from __future__ import annotations

from typing import Optional

from ignite_ipu.emulator.enums import OutputMode
from ignite_ipu.emulator.options.root import Options


def resolved(options: Optional[Options], training: bool) -> Options:
    """Return an executor's own frozen copy of the options, in which the output mode is chosen."""
    own = options.clone() if options else Options()
    if own.defaultOutputMode():
        own.outputMode(OutputMode.Final if training else OutputMode.All)
    own._resolve_anchors()
    own._freeze()
    return own
