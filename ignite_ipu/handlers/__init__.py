"""Event handlers for engines that run on IPUs; each is usable alone, with hand-written PopTorch loops too.

Each handler is a public name, and imports the interfaces of `session` that it follows. Start reading with
`weight_sync`.
"""

from __future__ import annotations

from ignite_ipu import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
