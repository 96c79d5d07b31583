"""Tensors and arrays of a caller that share the memory of weights, as `parameter.data`, views and `numpy()` do.

In eager PyTorch they change with the weights. A read of one of them does not bring the newest weights from a device, so
these come to the host after each update, as long as it is alive.
"""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Dict, List, Mapping, Sequence, Tuple

import torch

from ignite_ipu.program.tensors.raw import plain
from ignite_ipu.program.tensors.sharing import address_of, tensors_at
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass, sharers_of

# Tensors with the memory of weights that only this library holds, by `id`.
_OWN: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()


def own_alias(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with the memory of another that is not handed out, so that it does not count as kept."""
    alias = plain(tensor)
    mark_own(alias)
    return alias


def mark_own(alias: torch.Tensor) -> None:
    """Do not count a tensor as kept, since only this library holds it."""
    _OWN[id(alias)] = alias


class Aliases:
    """Finds the living tensors that share the memory of weights and are held by others than this library.

    An array of `numpy()` holds such a tensor, and a view does. The search goes through all objects of the process. It
    is made only if memory of weights was handed out, and more tensors share it than are known. PyTorch before 2.1 does
    not count these, so it is made each time there.

    Attributes:
        handed_out: Whether code may have got memory of weights since the last question.
        found: The weights with tensors that shared their memory at the last one; without any, and if no memory was
            handed out, there are none.
    """

    def __init__(self) -> None:
        self.handed_out = True  # before there was a device
        self.found: List[Tuple[torch.Tensor, weakref.ref[torch.Tensor]]] = []
        # By the id of a weight: the number of tensors that share its memory, hold it and are no Python objects.
        self._hidden: Dict[int, int] = {}

    def among(self, weights: Sequence[torch.Tensor]) -> Sequence[Tuple[torch.Tensor, torch.Tensor]]:
        """Return weights with tensors that share their memory: all at the first question, later at least one if any."""
        if not (self.handed_out or self.found):
            return ()
        alive = self._alive()
        if self.handed_out or not alive:
            self.handed_out = False
            with DisableTorchFunctionSubclass():
                shared = self._with_more_sharers(weights, Counter(id(weight) for weight, _ in alive))
                if shared:
                    self._search(weights, shared)
            alive = self._alive()
        return alive

    def _alive(self) -> List[Tuple[torch.Tensor, torch.Tensor]]:
        pairs = [(weight, alias()) for weight, alias in self.found]
        alive = [(weight, alias) for weight, alias in pairs if alias is not None]
        if len(alive) != len(pairs):
            self.found = [(weight, weakref.ref(alias)) for weight, alias in alive]
        return alive

    def _with_more_sharers(self, weights: Sequence[torch.Tensor], alive: Mapping[int, int]) -> Dict[int, torch.Tensor]:
        """Return the weights whose memory more tensors share than are known, by its address."""
        shared: Dict[int, torch.Tensor] = {}
        own, places = Counter(map(address_of, _OWN.values())), list(map(address_of, weights))
        own.update(places)
        for weight, place in zip(weights, places):
            sharers = sharers_of(weight) if place else 0
            if sharers is None:
                shared[place] = weight
            elif place:
                others = sharers - own[place] - alive.get(id(weight), 0)
                if others > self._hidden.get(id(weight), 0):
                    shared[place] = weight
                self._hidden[id(weight)] = others
        return shared

    def _search(self, weights: Sequence[torch.Tensor], shared: Mapping[int, torch.Tensor]) -> None:
        """Find all tensors that share memory of weights, given by its address."""
        known = {*_OWN.keys(), *map(id, weights), *(id(alias) for _, alias in self._alive())}
        for each in tensors_at(shared, known):
            weight = shared[address_of(each)]
            self.found.append((weight, weakref.ref(each)))
            self._hidden[id(weight)] = max(self._hidden.get(id(weight), 0) - 1, 0)
