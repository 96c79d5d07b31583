"""The version of PopTorch that the emulator stands for."""

from __future__ import annotations

__version__ = "3.3.0+emulator"
