"""Checkpoint files that are complete or not there, are checked before they are believed, and never run code."""

from __future__ import annotations

from ignite_ipu.checkpoints.reading import check_complete, read_checkpoint
from ignite_ipu.checkpoints.resuming import newest_checkpoint, resume_from
from ignite_ipu.checkpoints.writing import CheckpointSaver, write_checkpoint
from ignite_ipu.errors import CheckpointError

__all__ = [
    "CheckpointError",
    "CheckpointSaver",
    "check_complete",
    "newest_checkpoint",
    "read_checkpoint",
    "resume_from",
    "write_checkpoint",
]
