"""Checkpoint files that are complete or not there, are checked before they are believed, and never run code."""

from __future__ import annotations

from ignite_ipu import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
