"""Writes of the loop into weights and buffers around an update.

PyTorch has computed a loss when the loop writes into weights after it; the device computes it together with the update,
from the weights of that moment. An update on the host computes gradients with the previous weights, if these were kept.
"""

from __future__ import annotations

from typing import Dict, Iterable, List, Optional, Sequence, Set, Tuple

import torch

from ignite_ipu.deferred.graph.leaves import Input
from ignite_ipu.deferred.graph.operations import CLOCK, Operation
from ignite_ipu.deferred.graph.owners import CapturedLoop
from ignite_ipu.deferred.graph.state import Older, weights_of
from ignite_ipu.errors import CaptureError
from ignite_ipu.program.tensors.raw import plain
from ignite_ipu.program.user_code import current_line
from ignite_ipu.session.hooks import Edited
from ignite_ipu.session.weights.tracker import Weights
from ignite_ipu.torch_names.tensors import memory_of


class WeightEdits:
    """Tracks when a loop's weights were last written, relative to its recorded operations.

    Attributes:
        keeps: Whether previous values are kept.
        older: These values, which `take` returns.
        announced: By `id` of a tensor that is about to be written, the last operation before, and its memory then.
    """

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._seen = weights.detector.edits
        # The last operation that was recorded before the last edit of unknown weights, and before the last whose
        # weights were not kept.
        self._edited = self._lost = 0
        # The same for each weight that was known to be edited, by `id`, and the last of all.
        self._edits_of: Dict[int, Tuple[int, int]] = {}
        self._newest = (0, 0)
        # By `id`, the last operation before the last edit that PyTorch has not counted; None for unknown weights.
        self._uncounted: Dict[Optional[int], int] = {}
        self.keeps = False
        self._found: List[Edited] = []
        self._counted: Set[int] = set()
        self.older: List[Older] = []
        self.announced: Dict[int, Tuple[int, int]] = {}

    @property
    def is_waiting(self) -> bool:
        """True if writes were found or announced since the last look, or values before them are kept."""
        return bool(self._found or self.announced or self.older)

    def found(self, edited: Edited) -> None:
        """Note tensors that were found to be written."""
        self._found.append(edited)
        self._counted |= self._weights.detector.counted

    def before_write(self, tensors: Sequence[torch.Tensor]) -> None:
        """Keep the values of tensors that are about to be written, or whose memory is about to be replaced."""
        self.look()
        self._weights.to_host()
        self._weights.detector.keep(tensors)
        self.announced.update({id(tensor): (CLOCK.now, memory_of(plain(tensor))) for tensor in tensors})

    def look(self) -> None:
        """Look for edits; operations recorded from now on use the current weights."""
        weights = self._weights
        accesses = weights.detector.accesses
        if weights.programs.training is None or accesses is None or accesses.any:
            weights.notice_edits()
        elif weights.detector.edits == self._seen and not (self._found or self.announced):
            return
        found, self._found = self._found, []
        written, self.announced = self.announced, {}
        counted, self._counted = self._counted, set()
        edits = weights.detector.edits - self._seen
        if not edits:
            return
        self._seen += edits
        pairs = [pair for edited in found for pair in edited] if self.keeps else []
        older = _older(pairs, written, counted)
        self.older += older
        # Edits that were reported, and not found, may be of any weight.
        ids = None if edits > len(found) else self._sharing(found)
        self._note(CLOCK.now, ids, lost=not pairs)
        replaced = frozenset().union(*[each.replaced for each in older])
        uncounted = [None] if ids is None else [*(ids - written.keys() - counted), *replaced]
        self._uncounted.update(dict.fromkeys(uncounted, CLOCK.now))

    def _sharing(self, found: Sequence[Edited]) -> Set[int]:
        """Return the ids of the edited weights, and of those that share their memory."""
        memories = {memory_of(plain(tensor)) for edited in found for tensor, _ in edited}
        return {id(each) for each in self._weights.held.tensors if memory_of(plain(each)) in memories}

    def _note(self, number: int, ids: Optional[Iterable[int]], lost: bool) -> None:
        """Count an edit of some weights, None for any, that was made when operations had come up to a number."""
        self._newest = max(self._newest[0], number), max(self._newest[1], number if lost else 0)
        if ids is None:
            self._edited, self._lost = max(self._edited, number), max(self._lost, number if lost else 0)
        for each in ids or ():
            edited_before, lost_before = self._edits_of.get(each, (0, 0))
            self._edits_of[each] = max(edited_before, number), max(lost_before, number if lost else 0)

    def take(self) -> List[Older]:
        """Return the values before the edits since the last time, in their order."""
        older, self.older = self.older, []
        return older

    def merge(self, other: WeightEdits) -> None:
        """Take over the edits of a loop that is joined with this one."""
        other.look()
        ids = {id(each) for each in other._weights.held.tensors}
        self._note(other._edited, ids, lost=False)
        self._note(other._lost, ids, lost=True)
        for each, (edited, lost) in other._edits_of.items():
            self._note(edited, [each], lost=False)
            self._note(lost, [each], lost=True)
        self.older += other.take()
        for key, number in other._uncounted.items():
            self._uncounted[key] = max(number, self._uncounted.get(key, 0))

    def note(self, number: int, ids: Iterable[int]) -> None:
        """Count an edit of some tensors that was made when operations had come up to a number."""
        self._note(number, ids, lost=True)

    def older_than(self, call: Operation) -> bool:
        """Return whether the last edit was before a call."""
        self.look()
        return self._last(call) < call.number

    def came_between(self, first: Operation, last: Operation, ids: Iterable[int]) -> bool:
        """Return whether one of some tensors was edited after an operation and before another, by the last look."""
        edits = [self._edits_of[each][0] for each in ids if each in self._edits_of]
        return any(first.number <= edit < last.number for edit in edits)

    def _last(self, operation: Operation, unless_kept: bool = False) -> int:
        """Return the last operation before the last edit of weights that an operation may compute with."""
        last = self._lost if unless_kept else self._edited
        if last < operation.number <= self._newest[unless_kept]:
            edits = map(self._edits_of.get, weights_of(operation))
            last = max([last, *[edit[unless_kept] for edit in edits if edit is not None]])
        return last

    def was_written_uncounted(self, tensor: torch.Tensor, operation: Operation) -> bool:
        """Return whether a tensor may have been edited without PyTorch's count since an operation, by the last look.

        So it is if it has got other memory, as by `parameter.data = ...`.
        """
        return any(self._uncounted.get(key, -1) >= operation.number for key in (None, id(tensor)))

    def ignore(self) -> Set[int]:
        """Do not count current edits as the loop's, and return the ids of the tensors that were written."""
        self._weights.notice_edits()
        self._seen = self._weights.detector.edits
        written = {id(tensor) for edited in self._found for tensor, _ in edited}
        self._found.clear()
        self._counted.clear()
        self.announced.clear()
        return written

    def check(
        self, operations: Iterable[Operation], loop: CapturedLoop, what: str = "The update", unless_kept: bool = False
    ) -> None:
        """Refuse an update, or a read, of operations on other weights than the current ones, by the last look.

        With `unless_kept`, it is enough that the previous values are known.
        """
        newest = self._newest[unless_kept]
        written = next(
            (each for each in operations if each.number <= newest and self.is_written(each, unless_kept)), None
        )
        if written is not None:
            raise CaptureError(
                f"{what} at {current_line()} uses values computed at {written.line}, and weights or buffers "
                f"of {loop.name} were written after that. The device computes a loss and its update together, "
                "from the weights of the update. Write into weights after optimizer.step(), or before the model "
                "is called. An optimizer of two steps, as sharpness-aware minimisation (SAM) has, runs with "
                "IPUConfig(update='host'), in which backward() brings the gradients back."
            )

    def is_written(self, operation: Operation, unless_kept: bool = False) -> bool:
        """Return whether weights of an operation were written since, by the last look, as `check` refuses it."""
        if operation.number > self._newest[unless_kept] or operation.number > self._last(operation, unless_kept):
            return False
        weights = any(isinstance(leaf, Input) and leaf.parameter is not None for leaf in operation.leaves)
        return weights or operation.model is not None


def _older(pairs: Edited, written: Dict[int, Tuple[int, int]], counted: Set[int]) -> List[Older]:
    """Return the values of weights before they were written, in the order of the writes.

    Each function of a weight looks for writes before it is recorded, so none was recorded between a write and now.
    """
    moments: Dict[int, List[Tuple[torch.Tensor, Optional[torch.Tensor]]]] = {}
    replaced: Set[int] = set()
    for tensor, before in pairs:
        moment, memory = written.get(id(tensor), (CLOCK.now, None))
        moments.setdefault(moment, []).append((tensor, before))
        if memory is not None and memory != memory_of(plain(tensor)):
            replaced.add(id(tensor))
    uncounted = frozenset(id(tensor) for tensor, _ in pairs if id(tensor) not in written)
    sets = uncounted, frozenset(replaced), frozenset(counted)
    return [Older(moment, values, *sets) for moment, values in sorted(moments.items())]
