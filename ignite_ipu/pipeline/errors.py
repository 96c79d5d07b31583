"""What the planner raises."""

from __future__ import annotations


class PlanError(ValueError):
    """A plan, a placement or a setting of theirs that cannot run; the message has the numbers and a way out."""
