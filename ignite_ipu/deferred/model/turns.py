"""Programs of several optimizers over the same models: the operations of each, and its needs of others' steps.

Each optimizer's step is a program of its own, which computes everything that its weights' losses depend on. An
operation that two of them need, as a generator's call for the discriminator's update and then for its own, runs in
both.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import weakref
from typing import Any, Callable, Dict, FrozenSet, Iterable, Iterator, Optional, Sequence, Tuple

import torch

from ignite_ipu.deferred.graph.call_signatures import CallSignature
from ignite_ipu.deferred.graph.leaves import Input
from ignite_ipu.deferred.graph.operations import CLOCK, Operation, Value, by_number
from ignite_ipu.deferred.graph.state import Older, Values
from ignite_ipu.deferred.graph.step_graph import Loss, ancestors, gradient_path
from ignite_ipu.deferred.model.buffers import BufferBook
from ignite_ipu.deferred.model.reruns import with_reruns
from ignite_ipu.errors import CaptureError
from ignite_ipu.program.reached import reached
from ignite_ipu.program.user_code import current_line
from ignite_ipu.session.weights.tracker import Weights

_ORDER = itertools.count(1)


class Reach:
    """Finds the operations of a loss that depend on one optimizer's weights, given by the ids of its parameters."""

    def __init__(self, own: FrozenSet[int]) -> None:
        self.own = own
        self._calls: Dict[Tuple[CallSignature, Any], Tuple[bool, bool]] = {}

    def uses(self, operation: Operation) -> bool:
        """Return whether an operation computes with weights of this optimizer."""
        return self._call(operation)[0] or any(map(self._has, operation.leaves))

    def trained(self, loss: Loss) -> Optional[Loss]:
        """Return a loss with only the operations of an update by this optimizer; None if it reaches none.

        A known operation that does not lead to its weights keeps the values from the update that computed it.
        """
        leads: Dict[Operation, bool] = {}

        def leads_on(leaf: Value) -> bool:
            return leaf.shape.requires_grad and leads.get(leaf.operation, False)

        for operation in ancestors(loss.value):
            own = self._call(operation)[1] or any(
                self._has(leaf) and leaf.shape.requires_grad for leaf in operation.leaves
            )
            leads[operation] = operation.signature.grad and (own or any(map(leads_on, operation.value_leaves)))
        last = loss.value.operation
        if not leads[last]:
            return None
        if last.done and not last.live:
            raise CaptureError(
                f"The loss that went backward at {loss.line} was computed by an update that has run, and its "
                "operations are gone. Call backward(retain_graph=True) if gradients flow through it again, as PyTorch "
                "requires."
            )
        found = reached(
            [last],
            lambda each: [leaf.operation for leaf in each.value_leaves if leaf.tensor is None or leads_on(leaf)],
        )
        return dataclasses.replace(loss, operations=sorted(found, key=by_number))

    def chosen(self, losses: Sequence[Loss]) -> Sequence[Loss]:
        """Return losses with the operations that an update by this optimizer makes; without those it has no part in."""
        return [loss for loss in map(self.trained, losses) if loss is not None]

    def _has(self, leaf: Any) -> bool:
        return type(leaf) is Input and leaf.parameter is not None and id(leaf.tensor) in self.own

    def _call(self, operation: Operation) -> Tuple[bool, bool]:
        """Return whether a call of a model uses and trains weights of this optimizer."""
        model, signature = operation.model, operation.signature
        modes = signature.modes
        if model is None or modes is None:
            return False, False
        known = self._calls.get((signature, model))
        if known is None:
            ids = self.own.intersection(model.parameter_ids)
            trains = any(trained and id(each) in ids for each, trained in zip(modes.of.parameters, modes.trained))
            known = self._calls[signature, model] = bool(ids), trains
        return known


class Everything(Reach):
    """Finds everything that a loss computes, for the only optimizer."""

    def __init__(self) -> None:
        super().__init__(frozenset())

    def uses(self, operation: Operation) -> bool:
        return True

    def chosen(self, losses: Sequence[Loss]) -> Sequence[Loss]:
        return losses


class OlderWeights:
    """Weights of other optimizers before their steps: `kept` has them by the ids of the parameters that each holds."""

    def __init__(self) -> None:
        self.kept: Dict[FrozenSet[int], Older] = {}

    def clear(self) -> None:
        self.kept.clear()

    def keep(self, stepping: Reach, operations: Sequence[Operation], weights: Weights) -> None:
        """Keep the weights that another optimizer is about to change, if pending operations have used them."""
        own = stepping.own
        if own not in self.kept and any(map(stepping.uses, operations)):
            weights.to_host()
            self.kept[own] = Older.of([each for each in weights.held.tensors if id(each) in own])

    def values(self, steps: Sequence[Tuple[Reach, int]], operations: Sequence[Operation]) -> Values:
        """Return the weights of other optimizers with which operations were recorded, if these have stepped since.

        Args:
            steps: For each other optimizer when its last update ran, by `CLOCK`.
        """
        values: Values = []
        for reach, stepped in steps:
            used = [operation for operation in operations if reach.uses(operation)]
            stale = [operation for operation in used if operation.number <= stepped]
            if not stale:
                continue
            known = self.kept.get(reach.own)
            if known is None or any(operation.number > known.taken for operation in used):
                raise CaptureError(
                    f"The update at {current_line()} needs values computed at {stale[0].line} with weights that "
                    "another optimizer has changed since, and a device computes a loss together with its update. "
                    "Compute it after that optimizer's step(), or call backward() on it before, and step() of both "
                    "without another in between."
                )
            values += known.values
        return values


class Turn:
    """The updates of one optimizer among those of others.

    Attributes:
        reach: Finds the operations of losses that an update makes.
        stepped, order: When the last update ran, by `CLOCK`; and its number among those of several optimizers.
        older: Weights of other optimizers before their steps, with which the pending losses were computed.
        former: The optimizers of compiled steps that another one of the same weights has followed.
    """

    def __init__(self) -> None:
        self.former: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self.reach: Reach = Everything()
        self.stepped = self.order = 0
        self.older = OlderWeights()

    def note_step(self) -> None:
        """Note that an update was made now."""
        self.stepped, self.order = CLOCK.now, next(_ORDER)

    def go_on_from(self, before: Turn) -> None:
        """Take the place of the same optimizer in a loop that has become another, which may have joined several."""
        self.stepped, self.order = max(self.stepped, before.stepped), max(self.order, before.order)
        self.older.kept.update(before.older.kept)
        self.former |= before.former

    @contextlib.contextmanager
    def beside(
        self,
        others: Sequence[Tuple[Turn, Sequence[Loss]]],
        losses: Sequence[Loss],
        operations: Sequence[Operation],
        book: BufferBook,
    ) -> Iterator[Callable[[Operation], bool]]:
        """Make an update in the `with` block, and keep the operations and weights that updates of others need.

        Args:
            others: The turns of the other optimizers, with their pending losses.
            losses: The losses of the update.
            operations: The operations of theirs that it makes.
            book: The buffers of the loop's models.

        Returns:
            A function that returns whether gradients may flow through an operation once more.
        """
        for other, pending in others:
            computed = [each for loss in other.reach.chosen(pending) for each in loss.operations]
            other.older.keep(self.reach, computed, book.weights)
        path = {operation for loss in losses if not loss.retained for operation in gradient_path(loss.value)}
        awaited = {each for _, pending in others for loss in pending for each in gradient_path(loss.value)}

        def keeps(operation: Operation) -> bool:
            return operation.signature.trains and (operation not in path or operation in awaited)

        values = self.older.values([(other.reach, other.stepped) for other, _ in others], operations)
        with with_reruns(operations, awaited, keeps, book, values):
            self.older.clear()
            yield keeps
        forget(path - awaited)


def forget(operations: Iterable[Operation]) -> None:
    """Release the operands of operations through which no gradients flow any more."""
    for operation in operations:
        if operation.done:
            operation.finish()
