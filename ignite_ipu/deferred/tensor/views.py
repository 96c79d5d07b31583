"""Views of tensors of the step: a write into one changes all tensors that share its memory.

The graph of recorded operations has no memory: its values never change. A write into a view is recorded as a new value
of the tensor that has the memory, of which the views are taken anew.
"""

from __future__ import annotations

import math
from typing import Any, Callable, List, Optional, Sequence, Set, Tuple

import torch

from ignite_ipu.deferred.graph.operations import Operation, Value, by_number, name_of
from ignite_ipu.deferred.graph.signatures import inferred_signature
from ignite_ipu.deferred.graph.structure import Bounded, Structure, flatten, unflatten
from ignite_ipu.errors import CaptureError
from ignite_ipu.program.reached import reached
from ignite_ipu.program.user_code import Line

_WITHOUT_GRADIENTS = (torch.Tensor.detach, torch.detach)

_Step = Tuple[Any, Structure, int]
"""A function that gives a view, the structure of its arguments, and the index of the view among its results."""

_WRITERS = Bounded()


def written_values(target: Value, new: Value, line: Line) -> List[Tuple[torch.Tensor, Value]]:
    """Record that `new` is written into the memory of `target`; every tensor that shares it gets its new value.

    Returns:
        The tensors that the user holds, with their new values.

    Raises:
        CaptureError: The memory is that of an argument of a model, or gradients do not flow between the views.
    """
    root, steps, unfollowed = target, [], None
    while root.shape.aliases:
        base, operation = _base_of(root), root.operation
        function = operation.signature.function
        if base is None:
            raise _refusal(operation, line)
        if function is None or function in _WITHOUT_GRADIENTS:
            unfollowed = unfollowed or operation
        steps.append((function, operation.signature.structure, root.index))
        root = base
    shared = _views_of(root)
    if all(each is target or each.handle() is None for each in shared):
        handle = target.handle()
        return [] if handle is None else [(handle, new)]
    if unfollowed is not None:
        raise _refusal(unfollowed, line)
    for each in shared:
        if each.operation.signature.function is None and each is not root and each.handle() is not None:
            raise _refusal(each.operation, line)
    current = {root: _written(root, new, steps[::-1], line)}
    needed = _held(shared)
    for operation in sorted({each.operation for each in needed if each is not root}, key=by_number):
        again = Operation(operation.signature, None, [current.get(leaf, leaf) for leaf in operation.leaves], line)
        given = again.give()
        for old in operation.values:
            if old.shape.aliases:
                current[old] = given[old.index]
    found = [(each.handle(), each) for each in shared]
    return [(handle, current[each]) for handle, each in found if handle is not None]


def is_own_view(assigned: Any, target: Value, index: Any) -> bool:
    """Return whether the assigned value is `target[index]` itself, as `target[index] += x` assigns it."""
    value = getattr(assigned, "value", None)
    if not isinstance(value, Value) or not value.shape.aliases:
        return False
    operation = value.operation
    if operation.signature.function is not torch.Tensor.__getitem__:
        return False
    leaves: List[Any] = []
    structure = flatten(((torch.empty(0), index), {}), leaves)
    return operation.leaves[:1] == [target] and len(leaves) == 1 and structure.key == operation.signature.structure.key


def _base_of(value: Value) -> Optional[Value]:
    """Return the value that a value is a view of; None if it is one of a tensor of the host, or of several."""
    leaves = value.operation.leaves
    return leaves[0] if len(leaves) == 1 and type(leaves[0]) is Value else None


def _views_of(root: Value) -> List[Value]:
    """Return a value and those that share its memory, as far as they are still there."""

    def views(value: Value) -> List[Value]:
        operations = [operation for operation in value.readers() if operation.signature.aliases and not operation.done]
        return [each for operation in operations for each in operation.values if each.shape.aliases]

    return list(reached([root], views))


def _held(shared: Sequence[Value]) -> Set[Value]:
    """Return the values that the user holds, and those that they are views of."""
    found: Set[Value] = set()
    for value in shared:
        if value.handle() is None:
            continue
        while value not in found:
            found.add(value)
            base = _base_of(value) if value.shape.aliases else None
            if base is None:
                break
            value = base
    return found


def _written(root: Value, new: Value, steps: Sequence[_Step], line: Line) -> Value:
    """Return the value of a tensor into whose view, which these steps lead to, another value is written."""
    if not steps:
        return new
    key = (
        root.shape.size,
        root.shape.stride,
        *[(function, structure.key, index) for function, structure, index in steps],
    )
    writer = _WRITERS.get(key)
    if writer is None:
        writer = _WRITERS[key] = _writer(root, steps)
    structure = flatten(((torch.empty(0), torch.empty(0)), {}), [])
    signature = inferred_signature(writer, structure, [root, new], torch.is_grad_enabled(), line)
    return Operation(signature, None, [root, new], line).give()[0]


def _writer(root: Value, steps: Sequence[_Step]) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return a function that returns a copy of a tensor with other values at the places of a view.

    PopTorch follows writes into slices alone, so that other views are written by the numbers of their elements.
    """
    size, stride = root.shape.size, root.shape.stride
    count = math.prod(size)
    numbers = torch.empty_strided(size, stride, dtype=torch.long).copy_(torch.arange(count).view(size))
    for function, structure, index in steps:
        results: List[torch.Tensor] = []
        args, kwargs = unflatten(structure, [numbers])
        flatten(function(*args, **kwargs), results)
        numbers = results[index]
    places = numbers.reshape(-1)
    if not places.numel():
        return lambda tensor, new: tensor.clone()
    if torch.equal(places, torch.arange(count)):
        return lambda tensor, new: new.reshape(size)
    corners = [(int(axis.min()), int(axis.max()) + 1) for axis in _coordinates(places, size)]
    box = tuple([slice(*corner) for corner in corners])
    if torch.equal(places, torch.arange(count).view(size)[box].reshape(-1)):
        lengths = [end - start for start, end in corners]

        def with_slice(tensor: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
            copy = tensor.clone()
            copy[box] = new.reshape(lengths)
            return copy

        return with_slice

    def with_elements(tensor: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        return tensor.reshape(-1).index_put((places,), new.reshape(-1)).reshape(size)

    return with_elements


def _coordinates(places: torch.Tensor, size: Sequence[int]) -> List[torch.Tensor]:
    """Return the coordinates, along each dimension, of elements by their numbers."""
    found: List[torch.Tensor] = []
    for length in reversed(size):
        found.insert(0, places % length)
        places = places // length
    return found


def _refusal(operation: Operation, line: Line) -> CaptureError:
    function = operation.signature.function
    name = "the model" if function is None else f"{name_of(function)}()"
    return CaptureError(
        f"The tensor that is written in place at {line} shares memory with another tensor since {name} at "
        f"{operation.line}, in a way that recording does not follow. Write x = x + y instead of x += y, and copy = "
        "x.clone(); copy[...] = y instead of x[...] = y."
    )
