"""Checkpoint files that are complete or not there, are checked before they are believed, and never run code.

Handlers, accelerators and `parity` save and load by `writing` and `resuming`. Of other rooms it imports `torch_names`
alone, and nothing that trains. Start reading with `atomic_files`, by which every file of this package is written.
"""

from __future__ import annotations

from ignite_ipu import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
