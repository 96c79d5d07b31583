"""From recorded operations to a recipe: what the losses of a weight update are computed from, in a comparable form."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Sequence, Tuple

import torch

from ignite_ipu.deferred.errors import Line, shown
from ignite_ipu.deferred.graph import Input, Number, Operation, Value
from ignite_ipu.deferred.step import Recipe, RecipeStep

__all__ = ["Loss", "MicroBatch", "ancestors", "describe_change", "merged", "micro_batches"]


@dataclasses.dataclass(frozen=True)
class Loss:
    """A value that went backward.

    Attributes:
        value: The loss.
        operations: What it is computed from, in order.
        line: Where backward was called.
    """

    value: Value
    operations: Tuple[Operation, ...]
    line: Line


@dataclasses.dataclass(frozen=True)
class MicroBatch:
    """Operations that belong together, and what they read from the host.

    Attributes:
        operations: In order.
        recipe: Their comparable form.
        inputs: The tensors, in the order of the recipe's inputs.
        numbers: The floats, in the order of the recipe's numbers.
        loss_shape: Shape of the first loss.
    """

    operations: Tuple[Operation, ...]
    recipe: Recipe
    inputs: Tuple[Input, ...]
    numbers: Tuple[float, ...]
    loss_shape: Tuple[int, ...]

    @classmethod
    def of(cls, losses: Sequence[Loss]) -> MicroBatch:
        """Return the micro-batch that computes these losses."""
        unique = {operation: None for loss in losses for operation in loss.operations}
        operations = sorted(unique, key=lambda operation: operation.number)
        positions = {operation: position for position, operation in enumerate(operations)}
        inputs: List[Input] = []
        places: Dict[int, int] = {}
        numbers: List[float] = []
        steps = []
        for operation in operations:
            leaves = tuple([_leaf(leaf, positions, inputs, places, numbers) for leaf in operation.leaves])
            steps.append(RecipeStep(operation.function, operation.structure, leaves, operation.grad, operation.line))
        recipe = Recipe(
            tuple(steps),
            tuple([(positions[loss.value.operation], loss.value.index) for loss in losses]),
            tuple([(item.shape.size, item.shape.dtype) for item in inputs]),
            len(numbers),
        )
        return cls(tuple(operations), recipe, tuple(inputs), tuple(numbers), losses[0].value.shape.size)

    def tensors(self) -> List[torch.Tensor]:
        """Return the inputs' tensors.

        Raises:
            CaptureError: One was written into since it was recorded.
        """
        line = self.operations[0].line
        for item in self.inputs:
            item.check(line)
        return [item.tensor for item in self.inputs]


def ancestors(value: Value) -> Tuple[Operation, ...]:
    """Return the operations that a value is computed from, in order."""
    found = {value.operation: None}
    waiting = [value.operation]
    while waiting:
        for leaf in waiting.pop().leaves:
            if isinstance(leaf, Value) and leaf.tensor is None and leaf.operation not in found:
                found[leaf.operation] = None
                waiting.append(leaf.operation)
    return tuple(sorted(found, key=lambda operation: operation.number))


def micro_batches(losses: Sequence[Loss]) -> List[MicroBatch]:
    """Return the micro-batches of a weight update: losses that share a call of the model are in the same one.

    Gradients of several backward calls add up, so losses with operations in common are one loss, their sum.
    """
    groups: List[Tuple[List[Loss], set[Operation]]] = []
    for loss in losses:
        own = set(loss.operations)
        together: List[Loss] = []
        apart = []
        for members, operations in groups:
            if own & operations:
                together += members
                own |= operations
            else:
                apart.append((members, operations))
        groups = [*apart, ([*together, loss], own)]
    return sorted((MicroBatch.of(members) for members, _ in groups), key=lambda batch: batch.operations[0].number)


def merged(losses: Sequence[Loss]) -> MicroBatch:
    """Return everything as one micro-batch, for a device call that cannot repeat one recipe."""
    return MicroBatch.of(losses)


def describe_change(old: Recipe, new: Recipe) -> str:
    """Return in words how a recipe differs from the one that was compiled."""
    for before, after in zip(old.steps, new.steps):
        if before.key != after.key:
            if before.function is not after.function:
                return f"{_named(before)} became {_named(after)}"
            if before.leaves == after.leaves and before.grad == after.grad:
                return f"an argument of {_named(after)} changed"
            return f"{_named(after)} is computed from other values"
    if len(old.steps) != len(new.steps):
        longer = new if len(new.steps) > len(old.steps) else old
        extra = longer.steps[min(len(old.steps), len(new.steps))]
        return f"{_named(extra)} was {'added' if longer is new else 'left out'}"
    for position, (mine, theirs) in enumerate(zip(old.inputs, new.inputs)):
        if mine != theirs:
            return f"input {position} is now {_described(theirs)}, it was {_described(mine)}"
    return "another loss goes backward"


def _leaf(
    leaf: Any, positions: Dict[Operation, int], inputs: List[Input], places: Dict[int, int], numbers: List[float]
) -> Tuple[Any, ...]:
    if isinstance(leaf, Value):
        if leaf.operation in positions:
            return ("value", positions[leaf.operation], leaf.index)
        leaf = Input(leaf.get(), leaf.shape)
    if isinstance(leaf, Number):
        numbers.append(leaf.value)
        return ("number", len(numbers) - 1)
    if leaf.parameter is not None:
        return ("parameter", leaf.parameter)
    place = places.get(id(leaf.tensor))
    if place is None:
        place = places[id(leaf.tensor)] = len(inputs)
        inputs.append(leaf)
    return ("input", place)


def _named(step: RecipeStep) -> str:
    name = "the call of the model" if step.function is None else getattr(step.function, "__name__", "a function")
    return f"{name.strip('_')} ({shown(step.line)})"


def _described(tensor: Tuple[Tuple[int, ...], torch.dtype]) -> str:
    return f"a {tensor[1]} tensor of shape {tensor[0]}"
