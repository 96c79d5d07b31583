"""`SessionError`: what cannot be done with the model that some engines share."""

from __future__ import annotations

__all__ = ["SessionError"]


class SessionError(RuntimeError):
    """Engines over one model that contradict each other, a model that cannot go to an IPU, or lost training."""
