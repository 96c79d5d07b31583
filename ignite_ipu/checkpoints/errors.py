"""What goes wrong with checkpoints."""

from __future__ import annotations

__all__ = ["CheckpointError"]


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be written, is not complete, is not safe to read, or is of another model."""
