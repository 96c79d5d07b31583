"""Models that have weights in common: an encoder and the model it is part of, a classifier and its softmax around it.

Each has a session of its own, and one of them is trained. The others' programs are out of date after that, which only
the one that trained knows.
"""

from __future__ import annotations

import dataclasses
import itertools
import weakref
from typing import Dict, Sequence

from ignite_ipu.session.weights.tracker import Weights

__all__ = ["SharedWeights"]

_ALL: weakref.WeakSet[SharedWeights] = weakref.WeakSet()
_NUMBERS = itertools.count(1)
_newest = 0


@dataclasses.dataclass
class _Other:
    """Another model.

    Attributes:
        seen: How often it had been when it was asked last.
    """

    updates: Sequence[int]
    seen: int = 0


class SharedWeights:
    """Finds out what other models with some of the same weights have trained."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._known = 0
        self._others: Dict[weakref.ref[SharedWeights], _Other] = {}
        _ALL.add(self)
        self.look_again()

    def look_again(self) -> None:
        """Take in that there are more tensors, such as those of a loss."""
        global _newest
        self._tensors = {id(tensor) for tensor in self._weights.tensors}
        _newest = next(_NUMBERS)

    def take_over(self) -> None:
        """Bring what others have trained to the host, from where it is uploaded before the next call."""
        if self._known != _newest:
            self._look()
        if not self._others:
            return
        for reference, other in list(self._others.items()):
            shared = reference()
            if other.updates[0] != other.seen:
                other.seen = other.updates[0]
                # What this model trained, the other took over before it trained more.
                self._weights.to_host()
                if shared is not None:
                    shared._weights.to_host()  # else it did that when its session ended
                self._weights.host_changed()
            if shared is None:
                del self._others[reference]

    def _look(self) -> None:
        """Look for models that came since the last time."""
        for shared in list(_ALL):
            if shared is not self and not self._tensors.isdisjoint(shared._tensors):
                self._others.setdefault(weakref.ref(shared), _Other(shared._weights.updates))
        self._known = _newest
