"""Running an unmodified GPU script on IPUs: its calls of CUDA, Ignite and PyTorch are substituted while it runs.

`auto` and `parity` import `program`, `script_code` and `substituted`; the room imports all rooms that a substitute
leads to. Start reading with `script`, then one module of `substitutes`.
"""

from __future__ import annotations

from ignite_ipu import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
