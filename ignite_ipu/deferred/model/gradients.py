"""The gradient book of a captured loop: the contents of `parameter.grad` by PyTorch's rules, for every parameter.

Gradients stay on the device. The book records their losses, and the lines that cleared or used them. Clearing,
`backward()`, clipping and `optimizer.step()` change entries of the book and nothing else.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, FrozenSet, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ignite_ipu.deferred.graph.step_graph import Loss
from ignite_ipu.program.user_code import Line

_MOST_RELATIONS = 256


class Clip(NamedTuple):
    """Clipping of the gradients of some parameters, by their ids, to a norm of all of them together."""

    norm: float
    ids: FrozenSet[int]


@dataclasses.dataclass(eq=False)
class Entry:
    """The gradients of a class of parameters, which all have the same story since they were cleared.

    Attributes:
        ids: The ids of the parameters.
        losses: Losses that went backward and that no update has used yet.
        zeros: Where the gradients were made zero instead of None, if they were.
        used: Where an update used gradients that are still there.
        made: The losses of that update as they were, if they are kept.
        clip: How the used gradients were clipped, None for not.
        unknown: Reason why the values of the gradients are lost, if they are.
        given: The ids of parameters that had gradients of losses when these were made zero, or when weights of the
            model were replaced.
    """

    ids: FrozenSet[int]
    losses: List[Loss] = dataclasses.field(default_factory=list)
    zeros: Optional[Line] = None
    used: Optional[Line] = None
    unknown: Optional[str] = None
    made: List[Any] = dataclasses.field(default_factory=list)
    clip: Optional[Clip] = None
    given: FrozenSet[int] = frozenset()

    @property
    def exists(self) -> bool:
        """True if `parameter.grad` is not None, for parameters that the losses depend on."""
        return self.of_losses or self.zeros is not None

    @property
    def of_losses(self) -> bool:
        """True if losses have given the gradients values since these were None or zeros."""
        return bool(self.losses) or self.used is not None

    @property
    def story(self) -> Tuple[Any, ...]:
        """Equal for gradients that an update uses together."""
        return self.losses, self.used is None, self.zeros is None

    def with_ids(self, ids: FrozenSet[int]) -> Entry:
        return dataclasses.replace(self, ids=ids, losses=list(self.losses), made=list(self.made))


def losses_of(entries: Sequence[Entry]) -> Sequence[Loss]:
    """Return the losses that entries have gradients of, each once."""
    if len(entries) == 1:
        return entries[0].losses
    return list(dict.fromkeys(loss for entry in entries for loss in entry.losses))


class GradientBook:
    """The entries of all parameters of a loop. In a steady loop there is one, and each event takes one look at it."""

    def __init__(self, ids: Iterable[int] = ()) -> None:
        self.all = frozenset(ids)
        self.entries = [Entry(self.all)]
        # The intersection of two sets of parameters, and the rest of the first.
        self._relations: Dict[Tuple[FrozenSet[int], FrozenSet[int]], Tuple[FrozenSet[int], FrozenSet[int]]] = {}

    def of(self, ids: FrozenSet[int]) -> List[Entry]:
        """Return the entries of some parameters."""
        if len(self.entries) == 1:
            return self.entries
        return [entry for entry in self.entries if self._relation(entry.ids, ids)[0]]

    def holding(self, parameter: int) -> Optional[Entry]:
        """Return the entry of a parameter, None for one of another loop."""
        return next((entry for entry in self.entries if parameter in entry.ids), None)

    def within(self, ids: FrozenSet[int]) -> List[Entry]:
        """Return the entries of some parameters after splitting those that are also of others."""
        if len(self.entries) == 1 and self.entries[0].ids is ids:
            return self.entries
        found: List[Entry] = []
        entries: List[Entry] = []
        for entry in self.entries:
            common, others = self._relation(entry.ids, ids)
            if common and others:
                entries.append(entry.with_ids(others))
                entry = entry.with_ids(common)
            entries.append(entry)
            found += [entry] if common else []
        self.entries = entries
        return found

    def clear(self, ids: FrozenSet[int], zeros: Optional[Line] = None) -> List[Loss]:
        """Clear gradients, to None or at a line to zeros; returns the losses that no gradient is of any more."""
        cleared = self.within(ids)
        if zeros is None and cleared is self.entries:
            self.entries = [Entry(ids)]
            return cleared[0].losses
        before = list(dict.fromkeys(loss for entry in cleared for loss in entry.losses))
        others = [entry for entry in self.entries if entry not in cleared]
        if zeros is None:
            common = self._relation(self.all, ids)[0]
            self.entries = [*others, Entry(common)] if common else others
        for entry in cleared if zeros is not None else ():
            # Gradients that are None stay None.
            if entry.exists:
                entry.losses, entry.zeros, entry.used, entry.unknown, entry.made = [], zeros, None, None, []
        kept = {id(loss) for entry in others for loss in entry.losses}
        return [loss for loss in before if id(loss) not in kept]

    def copy(self) -> List[Entry]:
        """Return copies of all entries, which later changes do not reach."""
        return [entry.with_ids(entry.ids) for entry in self.entries]

    def add(self, ids: FrozenSet[int], loss: Loss) -> None:
        """Add the gradients of a loss to those of some parameters."""
        for entry in self.within(ids):
            entry.losses.append(loss)

    def use(self, ids: FrozenSet[int], line: Line, made: Mapping[Loss, Any], clip: Optional[float]) -> None:
        """Note that the update at a line has used gradients, which stay until they are cleared.

        `made` has the losses as they were, if they are kept; `clip` is the norm that gradients were clipped to.
        """
        clipping = None if clip is None else Clip(clip, ids)
        for entry in self.within(ids):
            if entry.exists:
                entry.made = [made[loss] for loss in entry.losses if loss in made] if made else []
                entry.losses, entry.used, entry.clip = [], line, clipping

    def drop(self, losses: Sequence[Loss]) -> None:
        """Take losses out of all entries: their gradients are lost."""
        gone = set(map(id, losses))
        for entry in self.entries:
            if entry.losses:
                entry.losses = [loss for loss in entry.losses if id(loss) not in gone]

    def merge(self, other: GradientBook) -> None:
        """Take the entries of another loop, with which this one is joined."""
        held = [entry for entry in other.entries if entry.exists]
        for entry in held:
            for mine in self.within(entry.ids):
                mine.losses += [loss for loss in entry.losses if loss not in mine.losses]
                mine.zeros, mine.used = mine.zeros or entry.zeros, mine.used or entry.used
                mine.unknown, mine.made = mine.unknown or entry.unknown, mine.made or entry.made
                mine.clip = entry.clip if mine.clip is None else mine.clip
                mine.given |= entry.given

    def _relation(self, one: FrozenSet[int], other: FrozenSet[int]) -> Tuple[FrozenSet[int], FrozenSet[int]]:
        if one is other:
            return one, frozenset()
        known = self._relations.get((one, other))
        if known is None:
            common = one & other
            known = (one, frozenset()) if len(common) == len(one) else (common, one - common)
            if len(self._relations) >= _MOST_RELATIONS:
                self._relations.clear()
            self._relations[one, other] = known
        return known


class OwnGradients:
    """The gradients of the parameters of one optimizer.

    Attributes:
        own: The ids of the parameters: all of the book, until the optimizer is known.
    """

    def __init__(self, book: GradientBook) -> None:
        self._book, self.own = book, book.all

    @property
    def entries(self) -> List[Entry]:
        """Their entries in the book."""
        book = self._book
        return book.entries if len(book.entries) == 1 else book.of(self.own)

    @property
    def pending(self) -> Sequence[Loss]:
        """Losses that went backward and of which no update has been made."""
        return losses_of(self.entries)

    @property
    def uncleared(self) -> Optional[Line]:
        """Line of the last update, as long as its gradients have not been cleared."""
        return next((entry.used for entry in self.entries if entry.used is not None), None)

    @property
    def exist(self) -> bool:
        """True if there are gradients that an update has used or will use."""
        return any(entry.used is not None or entry.losses for entry in self.entries)
