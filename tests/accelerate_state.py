"""accelerate's process-wide state: every run begins without that of the run before."""

from __future__ import annotations

from accelerate.state import AcceleratorState, GradientState


def forget() -> None:
    """Let the next accelerator be the first one of the process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
