"""Running an unmodified GPU script on IPUs: its calls of CUDA, Ignite and PyTorch are substituted while it runs."""

from __future__ import annotations

from ignite_ipu import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
