"""Results of calls, and what they store, that are parameters, buffers, arguments or views, as the user gets them."""

from __future__ import annotations

from typing import Any, Callable, FrozenSet, List, Sequence, Set, Tuple

import torch

from ignite_ipu.deferred.graph.operations import Operation
from ignite_ipu.deferred.graph.owners import parameter_of
from ignite_ipu.deferred.graph.returned import Returned
from ignite_ipu.deferred.graph.signatures import inferred_signature
from ignite_ipu.deferred.graph.structure import flatten
from ignite_ipu.deferred.tensor.inputs import input_of
from ignite_ipu.deferred.tensor.tensor import deferred_results
from ignite_ipu.program.tensors.raw import named_tensors
from ignite_ipu.program.user_code import Line


def in_place_of_results(
    results: List[Any],
    returned: Sequence[Tuple[int, Returned]],
    model: torch.nn.Module,
    given: Sequence[Any],
    line: Line,
) -> FrozenSet[int]:
    """Put what a call of a model returns by itself in the place of a program's results; `given` are its arguments.

    What it stores for other code is among them. Returns the ids of the model's own tensors that are results.
    """
    named = named_tensors(model)
    own_ids: Set[int] = set()
    for position, own in returned:
        tensor: Any = own.source
        if not isinstance(tensor, torch.Tensor):
            tensor = given[tensor] if isinstance(tensor, int) else named[tensor]
        if own.strides not in (None, tensor.stride()):
            continue
        for function, args in own.steps:
            tensor = _called(function, tensor, args, line)
        results[position] = tensor
        if not (own.steps or own.is_argument):
            own_ids.add(id(tensor))
    return frozenset(own_ids)


def _called(function: Callable[..., Any], tensor: Any, args: Tuple[Any, ...], line: Line) -> Any:
    """Return a view, which is recorded if it is one of a captured model's weight: each use has the weight's values."""
    if parameter_of(tensor) is None:
        return function(tensor, *args)
    structure = flatten(((tensor, *args), {}), [])
    leaves = [input_of(tensor, line)]
    signature = inferred_signature(function, structure, leaves, torch.is_grad_enabled(), line)
    return deferred_results(Operation(signature, None, leaves, line))
