"""Layers put on IPUs by hooks, and what an engine is asked for."""

from __future__ import annotations
