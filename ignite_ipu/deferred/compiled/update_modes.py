"""The modes of an update: those in which its calls of the models were made, by one optimizer."""

from __future__ import annotations

import functools
from typing import Dict, FrozenSet, Iterator, Optional, Sequence, Tuple

from ignite_ipu.deferred.compiled.modes import Modes, refuse_earlier, training_in_any
from ignite_ipu.deferred.compiled.statistics import refuse_later_statistics
from ignite_ipu.deferred.compiled.update import CompiledUpdate
from ignite_ipu.deferred.graph.leaves import Input, weights_among
from ignite_ipu.deferred.graph.modes_then import FROZEN, ModesThen
from ignite_ipu.deferred.graph.operations import Operation
from ignite_ipu.deferred.graph.step_graph import Loss, MicroBatch, modes_of_calls
from ignite_ipu.errors import CaptureError


class UpdateModes:
    """Finds the modes of a loop's updates.

    Its methods take the ids of the optimizer's `own` parameters where others train the rest, None for all.
    """

    def __init__(self, modes: Modes) -> None:
        self._modes = modes
        # Modes, the parameters of an optimizer, and the same modes without the parameters of others.
        self._seen: Tuple[Optional[ModesThen], Optional[FrozenSet[int]], Optional[ModesThen]] = (None, None, None)

    def now(self, own: Optional[FrozenSet[int]]) -> ModesThen:
        """Return the modes that the models are in."""
        return self._own(self._modes.now(), own)

    def of(
        self,
        batches: Sequence[MicroBatch],
        losses: Sequence[Loss],
        own: Optional[FrozenSet[int]],
        last: Optional[CompiledUpdate],
    ) -> ModesThen:
        """Return the modes of an update of losses, after the `last` one.

        Raises:
            CaptureError: One program cannot make calls that differ so.
        """
        if last is None or last.graph is not batches[0].graph:
            refuse_later_statistics(losses)
        if self._modes.since:
            refuse_earlier(self._modes, [operation for batch in batches for operation in batch.operations])
        first: Optional[Operation] = None
        modes: Optional[ModesThen] = None
        calls = [call for batch in batches for call in batch.operations if call.model is not None]
        if own is not None:
            calls.sort(key=functools.partial(_has_weights_of, own), reverse=True)
        for call in calls:
            others = call.signature.modes
            if others is None or others is modes:
                continue
            if others.of is not self._modes:
                # A part of a model that was called before it was known to be one.
                parts = [each.signature.modes for each in calls if each.signature.modes]
                modes = self._with_calls(self._own(self._modes.with_parts(parts), own), batches, losses, own)
                break
            if own is not None:
                alone = self._own(others, own)
                # Whether a model is frozen that another optimizer trains makes no difference to this one's update.
                others = alone if modes is None or _has_weights_of(own, call) else alone._replace(trained=modes.trained)
            if first is None or modes is None:
                first, modes = call, others
            elif others != modes:
                modes = self._with_calls(modes, batches, losses, own)
                break
        modes = self.now(own) if modes is None else modes
        for batch in batches:
            for operation in batch.operations:
                for leaf in operation.leaves if operation.model is None else ():
                    if type(leaf) is Input and leaf.parameter is not None:
                        return self._with_functions(modes, batches, own)
        return modes

    def _with_functions(
        self, modes: ModesThen, batches: Sequence[MicroBatch], own: Optional[FrozenSet[int]]
    ) -> ModesThen:
        """Return modes in which the weights are trained that were so when functions were called with them."""
        trained: Dict[int, Tuple[Operation, bool]] = {}
        called: Dict[int, Operation] = {}
        for operation in [operation for batch in batches for operation in batch.operations]:
            if operation.model is not None:
                called.update(dict.fromkeys(operation.model.parameter_ids, operation))
                continue
            for leaf in weights_among(operation.leaves):
                if own is None or id(leaf.tensor) in own:
                    first, flag = trained.setdefault(id(leaf.tensor), (operation, leaf.shape.requires_grad))
                    if flag != leaf.shape.requires_grad:
                        raise _frozen(first, operation)
        if not trained:
            return modes
        flags = list(modes.trained)
        for number, each in enumerate(self._modes.parameters):
            flag = trained[id(each)][1] if id(each) in trained else flags[number]
            if flag != flags[number]:
                if id(each) in called:
                    raise _frozen(called[id(each)], trained[id(each)][0])
                flags[number] = flag
        return modes if flags == modes.trained else modes._replace(trained=flags)

    def _with_calls(
        self,
        modes: ModesThen,
        batches: Sequence[MicroBatch],
        losses: Sequence[Loss],
        own: Optional[FrozenSet[int]],
    ) -> ModesThen:
        """Return the modes of an update with those of each of its calls, if these differ.

        A parameter is trained as it was at the calls of models that have it: others may be made while it is frozen.
        """
        firsts: Dict[int, Tuple[Operation, ModesThen]] = {}
        trained: Dict[int, Tuple[Operation, bool]] = {}
        differ = False
        for call in [call for batch in batches for call in batch.operations if call.model is not None]:
            then = call.signature.modes
            if then is None:
                continue
            first, others = firsts.setdefault(id(then.of), (call, then))
            problem: Optional[str] = None
            for number, flag in _trained_at(call, then, own):
                noted, before = trained.setdefault(number, (call, flag))
                if flag != before:
                    first, problem = noted, FROZEN
            as_trained = then._replace(trained=others.trained)
            if problem is None and as_trained != others:
                differ = True
            # Calls of before the model was known to be a part of a larger one, and calls after.
            differ |= any(apart.of is not then.of and not then.agrees_with(apart) for _, apart in firsts.values())
            problem = then.of.lost(then) if problem is None else problem
            if problem is not None:
                raise CaptureError(
                    f"The model was called at {first.line}, and again for the same update at {call.line}, but in "
                    f"between {problem}. The calls of one update are one program: change the model after "
                    "optimizer.step()."
                )
        parameters = zip(map(id, self._modes.parameters), modes.trained)
        flags = [trained[number][1] if number in trained else flag for number, flag in parameters]
        modes = modes if flags == modes.trained else modes._replace(trained=flags)
        if not differ:
            return modes
        refuse_later_statistics(losses)
        calls = modes_of_calls(batches[0])
        # Checks of the program look for modules that are in training mode in any call.
        return training_in_any(calls, modes)._replace(calls=calls)

    def _own(self, modes: ModesThen, own: Optional[FrozenSet[int]]) -> ModesThen:
        """Return modes in which parameters of other optimizers are frozen, as they are for this one's programs."""
        if own is None:
            return modes
        if modes is not self._seen[0] or own is not self._seen[1]:
            parameters = self._modes.parameters
            trained = [known and id(each) in own for known, each in zip(modes.trained, parameters)]
            self._seen = modes, own, modes._replace(trained=trained)
        assert self._seen[2] is not None
        return self._seen[2]


def _trained_at(call: Operation, then: ModesThen, own: Optional[FrozenSet[int]]) -> Iterator[Tuple[int, bool]]:
    """Yield the ids of the parameters of the model that is called, and whether each was trained, of an optimizer's."""
    assert call.model is not None
    ids = frozenset(call.model.parameter_ids)
    for each, flag in zip(then.of.parameters, then.trained):
        if id(each) in ids and (own is None or id(each) in own):
            yield id(each), flag


def _frozen(first: Operation, second: Operation) -> CaptureError:
    """Return the error for a weight that was frozen or unfrozen between two operations."""
    return CaptureError(
        f"A weight is used at {first.line}, and again for the same update at {second.line}, but in between {FROZEN}. "
        "The operations of one update are one program: freeze weights after optimizer.step()."
    )


def _has_weights_of(own: FrozenSet[int], call: Operation) -> bool:
    assert call.model is not None
    return not own.isdisjoint(call.model.parameter_ids)
