"""Digits: `python -m digits --epochs 2`."""

__version__ = "0.3"
