"""Reach of a loss: which operations gradients flow through to the weights of one optimizer, of several."""

from __future__ import annotations

from typing import Any, Collection, Dict, FrozenSet, List, Optional, Sequence, Tuple

from ignite_ipu.deferred.graph.leaves import Input
from ignite_ipu.deferred.graph.operations import CallSignature, Operation, Value, by_number
from ignite_ipu.deferred.graph.step_graph import Loss, ancestors
from ignite_ipu.errors import CaptureError

__all__ = ["Reach", "gradient_path"]


class Reach:
    """Finds what a loss computes from the weights of one optimizer.

    Args:
        own: Ids of the parameters that it holds.
    """

    def __init__(self, own: FrozenSet[int]) -> None:
        self.own = own
        self._calls: Dict[Tuple[CallSignature, Any], Tuple[bool, bool]] = {}

    def uses(self, operation: Operation) -> bool:
        """Tell whether an operation computes with weights of this optimizer."""
        return self._call(operation)[0] or any(self._has(leaf) for leaf in operation.leaves)

    def trained(self, loss: Loss) -> Optional[Loss]:
        """Return a loss with those operations alone that an update by this optimizer makes; None if it reaches none.

        What does not lead to its weights and is known has its values from the update that computed it.
        """
        leads: Dict[Operation, bool] = {}
        for operation in ancestors(loss.value):
            leads[operation] = operation.signature.grad and (
                self._call(operation)[1]
                or any(self._has(leaf) and leaf.shape.requires_grad for leaf in operation.leaves)
                or any(leaf.shape.requires_grad and leads.get(leaf.operation, False) for leaf in _values(operation))
            )
        if not leads[loss.value.operation]:
            return None
        if loss.value.operation.done and not loss.value.operation.live:
            raise CaptureError(
                f"The loss that went backward at {loss.line} was computed by an update that has run, and what it was "
                "computed from is gone. Call backward(retain_graph=True) where gradients flow through it again, as "
                "PyTorch asks for."
            )
        found = {loss.value.operation: None}
        waiting = [loss.value.operation]
        while waiting:
            for leaf in _values(waiting.pop()):
                wanted = leaf.tensor is None or (leaf.shape.requires_grad and leads.get(leaf.operation, False))
                if wanted and leaf.operation not in found:
                    found[leaf.operation] = None
                    waiting.append(leaf.operation)
        return loss.of(sorted(found, key=by_number))

    def _has(self, leaf: Any) -> bool:
        return type(leaf) is Input and leaf.parameter is not None and id(leaf.tensor) in self.own

    def _call(self, operation: Operation) -> Tuple[bool, bool]:
        """Return whether a call of a model uses and trains weights of this optimizer."""
        model, signature = operation.model, operation.signature
        if model is None:
            return False, False
        known = self._calls.get((signature, model))
        if known is None:
            ids = set(model.parameter_ids())
            modes = signature.modes
            if modes is None:
                return False, False
            trained: Collection[int] = {
                id(each) for each, trains in zip(_parameters(modes), modes.trained) if trains and id(each) in ids
            }
            known = self._calls[signature, model] = not self.own.isdisjoint(ids), not self.own.isdisjoint(trained)
        return known


def gradient_path(value: Value) -> List[Operation]:
    """Return the operations through which gradients of a value flow."""
    found = {value.operation: None}
    waiting = [value.operation]
    while waiting:
        for leaf in _values(waiting.pop()):
            if leaf.shape.requires_grad and leaf.operation not in found:
                found[leaf.operation] = None
                waiting.append(leaf.operation)
    return list(found)


def _values(operation: Operation) -> List[Value]:
    return [leaf for leaf in operation.leaves if type(leaf) is Value]


def _parameters(modes: Any) -> Sequence[Any]:
    parameters: Sequence[Any] = modes.of.parameters
    return parameters
