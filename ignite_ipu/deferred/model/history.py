"""The first updates of a loop, kept so that the host can make them again when updates move there.

A device makes forward, backward and the update together. Only later does a loop show whether it reads the gradients,
uses them again, or leaves out the step. So the weights before each of the first updates are kept until its gradients
are cleared, and so are its losses with all their operands.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
from types import MappingProxyType
from typing import Any, Callable, Container, Dict, Iterator, List, Mapping, Optional, Sequence

import torch

from ignite_ipu.deferred.graph.operations import CLOCK, Contents, Operation
from ignite_ipu.deferred.graph.state import Older, Values, written_buffers, written_ids
from ignite_ipu.deferred.graph.step_graph import Loss, Tape
from ignite_ipu.optimizers.host_link import Link
from ignite_ipu.session.session import IPUSession

WATCHED = 8
"""Updates of a loop that are kept until their gradients are cleared."""


_NUMBERS = itertools.count()
_NONE: Mapping[int, torch.Tensor] = MappingProxyType({})


class Made:
    """A loss whose update has run, with its operations as they were and the weights before the update.

    Attributes:
        first: The same loss before the first update made of it. Several optimizers may each make one.
        number: Greater for later updates.
    """

    def __init__(self, loss: Loss, before: Older, first: Optional[Made] = None) -> None:
        self.loss, self.number = loss, next(_NUMBERS)
        self.first: Made = self if first is None else first
        self._tape, self._before = Tape([loss]), before

    @property
    def taken(self) -> int:
        """The moment at which the weights before the update were kept."""
        return self._before.taken

    def made_with(self, other: Made) -> bool:
        """Return whether two losses began with the same weights."""
        return self._before is other._before

    @contextlib.contextmanager
    def rewound(self, known: Container[Operation] = (), written: Mapping[int, torch.Tensor] = _NONE) -> Iterator[None]:
        """Have the loss as it was before its update, in the `with` block; buffers are written once all the same.

        Args:
            known: Operations of earlier losses of the update.
            written: The buffers that these have written, by `id`.
        """
        first = {id(tensor): value for tensor, value in self._before.values if value is not None}
        later = {**first, **written}
        with self._tape.rewound():
            for operation in self.loss.operations:
                if operation.signature.writes:
                    values, written_by = first if operation in known else later, written_buffers(operation).items()
                    found = {name: values[id(each)] for name, each in written_by if id(each) in values}
                    operation.contents = {name: Contents(value) for name, value in found.items()}
            yield

    def weights(self, written: Mapping[int, torch.Tensor]) -> Values:
        """Return the previous weights and buffers, without the buffers that the loss writes.

        `written` has the buffers that earlier losses of the update have written, by `id`.
        """
        operations = self.loss.operations
        own = frozenset().union(*map(written_ids, operations))
        pairs = [pair for pair in self._before.values if id(pair[0]) not in own]
        return [(tensor, written.get(id(tensor), value)) for tensor, value in pairs]

    def take_back(self) -> None:
        """Have the loss as it was before its update from here on; its values stay known."""
        self._tape.rewind()


class History:
    """The weights before each of the first updates of one loop.

    Attributes:
        released: Called with weights that no gradient needs any more.
        kept: The weights.
    """

    def __init__(self) -> None:
        self.released: Callable[[Sequence[Older]], None] = _discard
        self._left: Dict[int, int] = {}
        self._lost = 0
        self.kept: List[Older] = []
        self._first: Dict[Loss, Made] = {}

    def watches(self, number: int) -> bool:
        """Return whether the pending update of a number, one of several optimizers', is one of the first."""
        return self._left.get(number, WATCHED) > 0

    def keep(self, session: IPUSession, number: int) -> None:
        """Keep the weights before an update of a number, which is one of the first."""
        self._left[number] = self._left.get(number, WATCHED) - 1
        session.weights.to_host()
        self.kept.append(Older.of(session.weights.held.tensors))
        # Of loops that were joined, each has kept its own weights: those of the others have changed later, or not yet.
        for position in range(len(self.kept) - 1, 0, -1):
            self.kept[position - 1] = self.kept[position - 1].with_others(self.kept[position])

    def note_step(self, ran: int) -> None:
        """Note that the step of an update is made now that ran ahead at a moment: it changes the weights now."""
        moved = [dataclasses.replace(each, taken=CLOCK.now) if each.taken == ran else each for each in self.kept]
        self.kept = sorted(moved, key=lambda each: each.taken)

    def take_back(self, ran: int) -> None:
        """Note that an update is taken back that ran ahead at a moment: the weights are those from before it."""
        self.kept = [each for each in self.kept if each.taken != ran]

    def made(self, losses: Sequence[Loss], stepped: Sequence[int]) -> Dict[Loss, Made]:
        """Return losses as they are before an update is made of them, whose weights were kept last.

        Other optimizers may have stepped since a loss was computed. So each loss has the oldest of the weights that
        were kept after it.

        Args:
            stepped: When the other optimizers have stepped last. Without the weights before such a step, none is known.
        """
        then: Dict[Loss, Older] = {}
        for loss in losses:
            computed = loss.operations[-1].number
            then[loss] = before = next(each for each in self.kept if each.taken >= computed)
            if any(computed <= step < before.taken for step in stepped):
                return {}
        made = {loss: Made(loss, then[loss], self._first.get(loss)) for loss in losses}
        for loss, each in made.items():
            self._first.setdefault(loss, each)
        return made

    def merge(self, other: History, numbers: Mapping[int, int], last_step: int) -> None:
        """Take over the weights of a loop with which this one is joined.

        Args:
            numbers: The numbers of updates here, by those in the other loop.
            last_step: When the other loop has made its last update. Unless the weights before it are kept, earlier ones
                are those of a moment at which the weights of the other loop are unknown.
        """
        for before, number in numbers.items():
            self._left[number] = min(self._left.get(number, WATCHED), other._left.get(before, WATCHED))
        self._first.update(other._first)
        kept_last = any(each.taken >= last_step for each in other.kept)
        self._lost = max(self._lost, other._lost, 0 if kept_last else last_step)
        kept = sorted([*self.kept, *other.kept], key=lambda each: each.taken)
        self.kept = [each for each in kept if each.taken > self._lost]

    def forget(self, ahead: Container[int] = ()) -> None:
        """Release the weights and losses, since all gradients were cleared.

        Updates that ran `ahead` of `backward()` at some moments have yet to give theirs.
        """
        self._first.clear()
        self.released([each for each in self.kept if each.taken not in ahead])
        self.kept = [each for each in self.kept if each.taken in ahead]


def _discard(older: Sequence[Older]) -> None:
    """Discard weights."""


@dataclasses.dataclass
class TakenBack:
    """Weights and an optimizer's state before an update that ran early, and that may be taken back."""

    weights: Sequence[torch.Tensor]
    optimizer: torch.optim.Optimizer
    state: Dict[Any, Any]

    @classmethod
    def of(cls, session: IPUSession, optimizer: torch.optim.Optimizer, link: Optional[Link]) -> TakenBack:
        state = optimizer.state_dict() if link is None else link.state_dict(link.read())
        return cls(session.weights.read(), optimizer, copy.deepcopy(state["state"]))

    def put_back(self, session: IPUSession) -> None:
        """Restore both, once the optimizer is an ordinary one again."""
        session.weights.put_back(self.weights)
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": self.state, "param_groups": groups})
