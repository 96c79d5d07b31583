"""Which session a model has, so that all engines over it share one."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Optional

from torch import nn

if TYPE_CHECKING:
    from ignite_ipu.session.session import IPUSession

__all__ = ["forget", "know", "known_session"]

# Weak on both sides: a session holds its model, and lives as long as one of its engines.
_SESSIONS: weakref.WeakKeyDictionary[nn.Module, weakref.ref[IPUSession]] = weakref.WeakKeyDictionary()


def known_session(model: nn.Module) -> Optional[IPUSession]:
    """Return the session of a model, None if it has none."""
    known = _SESSIONS.get(model)
    return None if known is None else known()


def know(model: nn.Module, session: IPUSession) -> None:
    """Let a model, or a part of one, have this session from now on."""
    _SESSIONS[model] = weakref.ref(session)


def forget(session: IPUSession) -> None:
    """Let the models that have a session have none any more."""
    for model in [model for model, known in _SESSIONS.items() if known() is session]:
        del _SESSIONS[model]
