"""Checkpoint files that are complete or not there, are checked before they are believed, and never run code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ignite_ipu.exports import exports

if TYPE_CHECKING:
    from ignite_ipu.checkpoints.reading import check_complete as check_complete
    from ignite_ipu.checkpoints.reading import read_checkpoint as read_checkpoint
    from ignite_ipu.checkpoints.resuming import newest_checkpoint as newest_checkpoint
    from ignite_ipu.checkpoints.resuming import resume_from as resume_from
    from ignite_ipu.checkpoints.writing import CheckpointSaver as CheckpointSaver
    from ignite_ipu.checkpoints.writing import write_checkpoint as write_checkpoint
    from ignite_ipu.errors import CheckpointError as CheckpointError

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        ".errors": "CheckpointError",
        "reading": "check_complete read_checkpoint",
        "resuming": "newest_checkpoint resume_from",
        "writing": "CheckpointSaver write_checkpoint",
    },
)
