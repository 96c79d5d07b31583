"""Event handlers for engines that run on IPUs; each is usable alone, with hand-written PopTorch loops too."""

from __future__ import annotations

from ignite_ipu import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
