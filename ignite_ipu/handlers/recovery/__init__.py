"""Training on after a fault of the device: snapshots, replay, decisions, exit codes."""

from __future__ import annotations

from ignite_ipu.handlers.recovery.decisions import Decision, RecoveryStatus
from ignite_ipu.handlers.recovery.handler import Recovery

__all__ = ["Decision", "Recovery", "RecoveryStatus"]
