"""`KeptWeights`: values of a loop's weights from before they changed, for losses that may still go backward."""

from __future__ import annotations

import dataclasses
import operator
import weakref
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import torch

from ignite_ipu.deferred.compiled.modes import is_earlier
from ignite_ipu.deferred.compiled.replayed_losses import saved_by
from ignite_ipu.deferred.graph.operations import CLOCK, USES, Operation, by_number
from ignite_ipu.deferred.graph.owners import Captured
from ignite_ipu.deferred.graph.state import Older, Values, trained_in, weights_of, written_ids
from ignite_ipu.deferred.graph.step_graph import Loss
from ignite_ipu.deferred.model.loop import Loop
from ignite_ipu.errors import CaptureError
from ignite_ipu.program.user_code import current_line

_taken: Callable[[Older], int] = operator.attrgetter("taken")
# So many references to recorded calls are kept at least before those of calls that are gone are released.
_RECORDED = 64


class KeptWeights:
    """Values of a loop's weights from before edits and updates.

    They are kept as long as something that was computed with them may go backward: PyTorch computes its gradients with
    these values.

    Attributes:
        changes: How often weights have changed.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        # Operations that compute with weights, whose values may be referenced, as long as they are.
        self._recorded: List[weakref.ref[Operation]] = []
        self._most_recorded = _RECORDED
        self._older: List[Older] = []
        # The last operation that was recorded before a parameter was changed last, by the id of the parameter.
        self._changed: Dict[int, int] = {}
        self.changes = self._last_change = 0
        # Since a moment, the last operation that was computed with each parameter, by the id of that.
        self._in_use: Tuple[Tuple[int, int], Dict[int, int]] = ((-1, -1), {})
        loop.edits.keeps = True

    def note_call(self, call: Operation) -> None:
        """Note a call of a model that was recorded."""
        if self._loop.edits.older:
            self.follow_edits()
        if self._older:
            self._release()
        self._recorded.append(weakref.ref(call))
        if len(self._recorded) > self._most_recorded:
            self._recorded = [each for each in self._recorded if each() is not None]
            self._most_recorded = max(_RECORDED, 2 * len(self._recorded))

    def awaits(self, model: Captured) -> bool:
        """Return whether an update is still to come of a noted call of a model."""
        calls = [call for call in [reference() for reference in self._recorded] if call is not None]
        return any(call.model is model and call.problem is None and not call.is_spent for call in calls)

    def note_write(self, tensors: Sequence[torch.Tensor]) -> None:
        """Keep weights that are about to change, or whose memory is about to be replaced, if they may be needed."""
        needed = self._needed(tensors) if tensors else ()
        if needed:
            self._loop.edits.before_write(needed)

    def note_view(self, tensor: torch.Tensor) -> None:
        """Keep the value of a weight, if it may be needed."""
        needed = self._needed([tensor])
        if needed:
            self._loop.session.weights.to_host()
            self._loop.session.weights.detector.keep(needed)

    def mixes(self, loss: Loss) -> bool:
        """Return whether a loss and its gradients need several values of a weight.

        The loss is computed with them, or autograd has saved a weight that was written since, as by `parameter.data`.
        PyTorch computes gradients with a mixture then: results from before, and weights from after.
        """
        if self._loop.edits.older:
            self.follow_edits()
        if not self._older:
            return False
        if loss.operations[0].number <= self._last_change and self._have_several_values(loss.operations):
            return True
        if not any(older.uncounted or older.replaced for older in self._older):
            return False
        # With each, whether its memory was replaced: autograd has the new one if it has saved the weight itself.
        ids = {
            key: key in older.replaced
            for operation in loss.operations
            for key in weights_of(operation)
            for older in self._older
            if key in (older.uncounted | older.replaced) and older.taken >= operation.number
        }
        if not ids:
            return False
        changed = [tensor for older in self._older for tensor, _ in older.values]
        saved = saved_by([loss], [*self._loop.modes.parameters, *changed], trained_in(loss))
        return any(saved.get(key, False) if replaced else key in saved for key, replaced in ids.items())

    def _have_several_values(self, operations: Sequence[Operation]) -> bool:
        """Return whether operations have used several values of a weight that none writes, all of which are known."""
        used: Dict[int, Any] = {}
        several = False
        written = frozenset().union(*map(written_ids, operations))
        for operation in operations:
            for key in (weights_of(operation) - written) & self._changed.keys():
                then = None
                if operation.number <= self._changed[key]:
                    then = self._value_then(key, operation)
                    if then is None:
                        return False
                several |= used.setdefault(key, then) is not then
        return several

    def changes_since(self, operation: Operation) -> List[Older]:
        """Return the weights before each change since an operation, in the order of the changes."""
        return sorted((each for each in self._older if each.taken >= operation.number), key=_taken)

    def keep(self, older: Sequence[Older]) -> None:
        """Keep weights from before updates on the device, as long as something computed with them may go backward."""
        self._older += older
        self._release()

    def keep_before_step(self, held: Sequence[torch.Tensor]) -> Optional[Older]:
        """Keep weights that a step may change, if something that may go backward was computed with them."""
        self._loop.edits.look()
        if self._loop.edits.older:
            self.follow_edits()
        if self._older:
            self._release()
        needed = self._needed(held)
        if not needed:
            return None
        self._older.append(Older.of(needed))
        return self._older[-1]

    def are_stale(self, call: Operation) -> bool:
        """Return whether weights that a call used have changed since."""
        if is_earlier(self._loop.modes, call):
            return True  # the weights of that time were kept for the parts of before
        return not call.done and any(self._changed.get(key, 0) >= call.number for key in weights_of(call))

    def then(self, operation: Operation) -> Optional[Values]:
        """Return the weights that have changed since an operation used them, as they were; None if some are lost."""
        if is_earlier(self._loop.modes, operation):
            return None
        if self._loop.edits.older:
            self.follow_edits()
        values: Values = []
        for key in () if operation.done else weights_of(operation) & self._changed.keys():
            if operation.number <= self._changed[key]:
                then = self._value_then(key, operation)
                if then is None:
                    return None
                values.append(then)
        return values

    def values_then(self, loss: Loss) -> Values:
        """Return the weights that have changed since the operations of a loss, with their values at that time."""
        operations = loss.operations
        if not self._changed or operations[0].number > self._last_change:
            return []
        # By the id of a weight: the value that earlier operations have used, None for the current one.
        used: Dict[int, Any] = {}
        for operation in operations:
            # An update begins with the buffers that a replayed call began with.
            written = written_ids(operation)
            replayed = operation.number in self._loop.buffers.replays
            for key in weights_of(operation) & self._changed.keys():
                stale = operation.number <= self._changed[key]
                if key in written:
                    lost, then = stale and not replayed, None
                else:
                    then = self._value_then(key, operation) if stale else None
                    lost = stale and then is None
                if lost or used.setdefault(key, then) is not then:
                    raise _of_several_weights(loss, operation)
        return [pair for pair in used.values() if pair is not None]

    def follow_device(self, stepped: Mapping[int, int], older: Sequence[Older]) -> None:
        """Go on from updates on the device: by `id`, when parameters were changed last, and weights before updates."""
        self._changed.update({key: max(when, self._changed.get(key, 0)) for key, when in stepped.items() if when})
        self._last_change = max(self._last_change, *stepped.values())
        # Edits after these updates may be known already. An edit before one of the same moment would have refused it.
        self._older = sorted([*older, *self._older], key=_taken)

    def note_changes(self, changed: Sequence[int], before: Optional[Older] = None) -> None:
        """Note that PyTorch has changed weights, by their ids; of those `before` a step, only these are needed."""
        self._changed.update(dict.fromkeys(changed, CLOCK.now))
        if changed:
            self.changes += 1
            self._last_change = CLOCK.now
        if before is not None:
            pairs = [pair for pair in before.values if self._changed.get(id(pair[0]), -1) >= before.taken]
            if len(pairs) < len(before.values):
                others = [each for each in self._older if each is not before]
                self._older = [*others, dataclasses.replace(before, values=pairs)] if pairs else others

    def merge(self, other: KeptWeights) -> None:
        """Take over the values of a loop that is joined with this one."""
        self._recorded += other._recorded
        self._older += other._older
        self._changed.update(other._changed)
        self.changes += other.changes
        self._last_change = max(self._last_change, other._last_change)

    def _needed(self, tensors: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        """Return those weights whose present values may be needed after they change.

        Something was computed with them that may go backward, and they have not changed since.
        """
        moment = CLOCK.now, CLOCK.settled
        if self._in_use[0] != moment:
            used_by = sorted([*self._pending(), *(_uses() if USES else ())], key=by_number)
            self._in_use = moment, {key: each.number for each in used_by for key in weights_of(each)}
        used = self._in_use[1]
        if not used:
            return []
        kept = {id(tensor): older.taken for older in self._older for tensor, value in older.values if value is not None}
        return [tensor for tensor in tensors if used.get(id(tensor), 0) > kept.get(id(tensor), 0)]

    def _pending(self) -> List[Operation]:
        recorded = {each for each in [reference() for reference in self._recorded] if each is not None}
        found = (each for each in recorded if each.problem is None and each.values and not each.is_spent)
        return sorted(found, key=by_number)

    def follow_edits(self) -> None:
        """Take the weights from before edits of the loop that were found."""
        for older in self._loop.edits.take():
            self._older.append(older)
            self._changed.update({id(tensor): older.taken for tensor, _ in older.values})
            self.changes += 1
            self._last_change = max(self._last_change, older.taken)

    def _release(self) -> None:
        """Discard previous weights that no loss which may still go backward depends on, and no function's result."""
        first = min((each.number for each in [*self._pending(), *(_uses() if USES else ())]), default=None)
        self._older = [] if first is None else [each for each in self._older if each.taken >= first]

    def _value_then(self, key: int, operation: Operation) -> Any:
        """Return a weight, by its id, with the value that it had when an operation was recorded; None if it is lost."""
        kept = (older for older in self._older if older.taken >= operation.number)
        found = next((pair for older in kept for pair in older.values if id(pair[0]) == key), None)
        return None if found is None or found[1] is None else found


def _of_several_weights(loss: Loss, operation: Operation) -> CaptureError:
    """Return the error for the gradients of a loss of which an operation has lost the weights of its time."""
    line = current_line()
    why = (
        f"is computed at {operation.line} with weights that have changed since or before. Their values at that time "
        "are unknown, or the loss is computed with others, too."
    )
    if line.place != loss.line.place:
        return CaptureError(
            f"Gradients are used at {line}, and the loss that went backward for them at {loss.line} {why} Use "
            "gradients before weights change, or set IPUConfig(update='host'), with which backward() brings them."
        )
    return CaptureError(
        f"The loss that goes backward at {line} {why} A device call has one set of weights. Call backward() before "
        "optimizer.step(), or compute everything anew after it."
    )


def _uses() -> List[Operation]:
    """Return the functions that were called with weights, and have no results yet."""
    return [each for each in [use() for use in list(USES.values())] if each is not None and not each.done]
