"""Models larger than one IPU: measured on the host, planned, drawn, and placed without an edit.

Sessions and captured loops import `placing`; `planning` and `profiling` import no session. Start reading with
`placing.request`, then `planning`.
"""

from __future__ import annotations

from ignite_ipu import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
