"""Collective operators: the values of all replicas go into one function, and each replica gets its part of the results.

PopART has `ReplicatedAllGather`, `ReplicatedAllReduce` and `ReplicatedReduceScatter`; libraries for IPUs add
`ReplicatedAllReduceTP` and `ReplicatedAllToAll`. Gradients are those that the operators define, which are not always
the derivatives.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from ignite_ipu.emulator.errors import backend_error
from ignite_ipu.emulator.popdist import replicas
from ignite_ipu.emulator.popdist.replicas import Replicas
from ignite_ipu.emulator.values.structures import listed

Values = List[torch.Tensor]
# Takes a list of tensors, one a replica, for each input, and returns the outputs of each replica.
Joint = Callable[..., Sequence[Any]]
# Takes the values of one group of replicas, and returns as many.
_OfGroup = Callable[[Values], Values]

_GROUPING, _OLD_GROUPING = "__collectiveReplicaGrouping", "__collectiveCommGroup"
_OPERATORS = ("Add", "Mean", "Mul", "Min", "Max", "LogicalAnd", "LogicalOr", "SquareAdd", "Local")
_ALL, _CONSECUTIVE, _ORTHOGONAL = range(3)
_TYPES = (torch.float32, torch.float16, torch.int32, torch.int64)


def kernel_of(joint: Joint, attributes: Dict[str, Any]) -> Callable[..., List[torch.Tensor]]:
    """Return the kernel of one replica for a function of all replicas."""

    def kernel(*values: torch.Tensor) -> List[torch.Tensor]:
        return list(_Joined.apply(joint, attributes, *values))  # type: ignore[no-untyped-call]

    return kernel


class _Joined(torch.autograd.Function):
    """One replica's side of a function of all replicas."""

    @staticmethod
    def forward(ctx: Any, joint: Joint, attributes: Dict[str, Any], *values: torch.Tensor) -> Any:
        ctx.shared = shared = replicas.exchange(lambda group, own: _Shared(group, joint, attributes, own), values)
        outputs = shared.outputs(replicas.this_replica())
        results = tuple(output.detach().clone() for output in outputs)
        ctx.mark_non_differentiable(*[new for new, old in zip(results, outputs) if not old.requires_grad])
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        found = replicas.exchange(ctx.shared.backward, gradients)
        return (None, None, *found[replicas.this_replica()])


class _Shared:
    """The values of all replicas in one call of a collective operator, and the way back through it."""

    def __init__(
        self, group: Replicas, joint: Joint, attributes: Dict[str, Any], own: List[Tuple[torch.Tensor, ...]]
    ) -> None:
        self._offset, self._count = group.offset, len(own)
        everywhere = [group.gather(values) for values in zip(*own)]
        self._inputs = [
            [value.detach().requires_grad_(value.is_floating_point()) for value in values] for values in everywhere
        ]
        with torch.enable_grad():
            results = joint(*self._inputs, **attributes)
        if len(results) != group.total:
            raise backend_error(
                f"A function of all replicas returned outputs for {len(results)} of {group.total} replicas: it must "
                "return a sequence with one entry, a tensor or several, for each replica."
            )
        self._outputs = [listed(result) for result in results]

    def outputs(self, replica: int) -> List[torch.Tensor]:
        return self._outputs[self._offset + replica]

    def backward(self, group: Replicas, own: List[Tuple[torch.Tensor, ...]]) -> List[List[Optional[torch.Tensor]]]:
        """Return the gradients of the inputs, by replica of this process, from those of its outputs."""
        by_output = [group.gather(gradients) for gradients in zip(*own)]
        ways = [
            (output, by_output[place][replica])
            for replica, outputs in enumerate(self._outputs)
            for place, output in enumerate(outputs)
            if output.requires_grad
        ]
        leaves = [value for values in self._inputs for value in values if value.requires_grad]
        found = torch.autograd.grad([way[0] for way in ways], leaves, [way[1] for way in ways], allow_unused=True)
        gradients = {id(leaf): gradient for leaf, gradient in zip(leaves, found)}
        return [
            [gradients.get(id(values[self._offset + replica])) for values in self._inputs]
            for replica in range(self._count)
        ]


class _WithGradient(torch.autograd.Function):
    """Function of one group's values with the gradient that its operator defines; without one nothing flows back."""

    @staticmethod
    def forward(ctx: Any, function: _OfGroup, gradient: Optional[_OfGroup], *values: torch.Tensor) -> Any:
        ctx.gradient = gradient
        results = tuple(function(list(values)))
        if gradient is None:
            ctx.mark_non_differentiable(*results)
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return (None, None, *ctx.gradient(list(gradients)))


def groups(attributes: Dict[str, Any], total: int) -> List[List[int]]:
    """Return the replicas of each group that exchange their values, as an operator's attributes describe them.

    Raises:
        Error: They describe none for so many replicas.
    """
    if _GROUPING in attributes and _OLD_GROUPING in attributes:
        raise backend_error(f"A collective operator takes {_GROUPING} or {_OLD_GROUPING}, and was given both.")
    count, stride, size = total, 1, total
    if _OLD_GROUPING in attributes:
        kind, shards = attributes[_OLD_GROUPING]
        size = {_ALL: total, _CONSECUTIVE: shards, _ORTHOGONAL: shards}.get(kind, 1)
        stride = total // size if kind == _ORTHOGONAL and size else 1
    elif _GROUPING in attributes:
        count, stride, size = attributes[_GROUPING]
    if count != total or size < 1 or stride < 1 or total % (stride * size):
        raise backend_error(
            f"{_GROUPING} of {[count, stride, size]} (number of replicas, stride, size of a group) divides no "
            f"{total} replicas into groups. The first number must be {total}, and a multiple of stride times size."
        )
    starts = [first for first in range(total) if first // stride % size == 0]
    return [list(range(first, first + stride * size, stride)) for first in starts]


def _in_groups(attributes: Dict[str, Any], function: _OfGroup, gradient: Optional[_OfGroup], values: Values) -> Values:
    results = list(values)
    for members in groups(attributes, len(values)):
        own = _WithGradient.apply(function, gradient, *[values[member] for member in members])  # type: ignore[no-untyped-call]
        for member, result in zip(members, own):
            results[member] = result
    return results


def _all_gather(values: Values, **attributes: Any) -> Values:
    return _in_groups(attributes, _joined, lambda gradients: _own_slices(gradients, values[0].shape), values)


def _all_reduce(values: Values, **attributes: Any) -> Values:
    return _in_groups(attributes, lambda own: _reduced(own, operator_of(attributes)), None, values)


def _all_reduce_with_gradient(values: Values, backwards: int = 0, **attributes: Any) -> Values:
    ways: Tuple[_OfGroup, _OfGroup] = (lambda own: _reduced(own, "Add"), _copies)
    forward, backward = reversed(ways) if backwards else ways
    return _in_groups(attributes, forward, backward, values)


def _reduce_scatter(values: Values, **attributes: Any) -> Values:
    operator, shape = operator_of(attributes), values[0].shape
    count = shape.numel()

    def scattered(own: Values) -> Values:
        reduced = _reduced(own, operator)
        length = -(-count // len(own))
        padded = [torch.cat([each.flatten(), each.new_zeros(length * len(own) - count)]) for each in reduced]
        return [each[place * length : (place + 1) * length].clone() for place, each in enumerate(padded)]

    def gathered(gradients: Values) -> Values:
        return [each[:count].reshape(shape) for each in _joined(gradients)]

    return _in_groups(attributes, scattered, gathered if operator == "Local" else None, values)


def _all_to_all(values: Values, **attributes: Any) -> Values:
    return _in_groups(attributes, _exchanged, _exchanged, values)


def _copies(values: Values) -> Values:
    return [value.clone() for value in values]


def _joined(values: Values) -> Values:
    whole = torch.cat([value.flatten() for value in values])
    return [whole.clone() for _ in values]


def _own_slices(gradients: Values, shape: torch.Size) -> Values:
    count = shape.numel()
    parts = (gradient.flatten()[place * count : (place + 1) * count] for place, gradient in enumerate(gradients))
    return [part.reshape(shape) for part in parts]


def _exchanged(values: Values) -> Values:
    blocks = [value.chunk(len(values)) for value in values]
    return [torch.cat([own[replica] for own in blocks]) for replica in range(len(values))]


def _reduced(values: Values, operator: str) -> Values:
    if operator == "Local":
        return _copies(values)
    kind = values[0].dtype
    stacked = torch.stack(values)
    wide = stacked.float() if kind is torch.float16 else stacked
    if operator in ("Add", "Mean", "SquareAdd"):
        total = (wide.square() if operator == "SquareAdd" else wide).sum(0)
        reduced = total / len(values) if operator == "Mean" else total
    elif operator == "Mul":
        reduced = wide.prod(0)
    elif operator in ("Min", "Max"):
        reduced = wide.amin(0) if operator == "Min" else wide.amax(0)
    else:
        truths = wide != 0
        reduced = truths.all(0) if operator == "LogicalAnd" else truths.any(0)
    return [reduced.to(kind, copy=True) for _ in values]


def operator_of(attributes: Dict[str, Any]) -> str:
    """Return the name of the operator that a reduction's attributes choose.

    Raises:
        Error: There is none of that number.
    """
    number = attributes.get("__collectiveOperator", 0)
    if number not in range(len(_OPERATORS)):
        raise backend_error(f"__collectiveOperator must be between 0 and {len(_OPERATORS) - 1}, got {number!r}.")
    return _OPERATORS[number]


def check(name: str, attributes: Dict[str, Any], values: Sequence[torch.Tensor], total: int) -> None:
    """Refuse attributes, types and shapes that an operator of this module does not take, when a model compiles.

    Raises:
        Error: As PopART would.
    """
    members = groups(attributes, total)[0]
    operator_of(attributes)
    if len(values) != 1:
        raise backend_error(f"{name} takes one tensor, got {len(values)}.")
    if values[0].dtype not in _TYPES:
        raise backend_error(f"{name} takes float, half, int32 and uint32 values, got {values[0].dtype}.")
    if name == "ReplicatedAllToAll" and (not values[0].dim() or values[0].shape[0] % len(members)):
        raise backend_error(
            f"ReplicatedAllToAll cuts the first dimension into one block for each of {len(members)} replicas, and the "
            f"shape is {tuple(values[0].shape)}."
        )


def has_gradient(name: str, attributes: Dict[str, Any]) -> Optional[bool]:
    """Return whether gradients flow back through an operator; None where a model that needs them does not compile."""
    if name == "ReplicatedReduceScatter":
        return True if operator_of(attributes) == "Local" else None
    return name != "ReplicatedAllReduce"


# By name; all are of the domain and the version.
DOMAIN, VERSION = "ai.graphcore", 1
COLLECTIVES: Dict[str, Joint] = {
    "ReplicatedAllGather": _all_gather,
    "ReplicatedAllReduce": _all_reduce,
    "ReplicatedAllReduceTP": _all_reduce_with_gradient,
    "ReplicatedAllToAll": _all_to_all,
    "ReplicatedReduceScatter": _reduce_scatter,
}
