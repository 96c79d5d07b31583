"""Values in traced code: their kinds, and whether their numbers are computed in the trace or known on the host."""

from __future__ import annotations

import enum
from dataclasses import replace
from typing import FrozenSet, Iterable, NamedTuple, Optional, Tuple

from ignite_ipu.migration.analysis.kinds import Fact, Kind, join_kinds

CALL, WITH_GRADIENTS, TRAINING, OF_WEIGHTS = "model", "gradients", "training", "of weights"
"""Kinds of the facts behind a value in the code of a loop.

Calls of models, those that gradients flow through, and those in training mode. The last are not certain if the mode is
left open. OF_WEIGHTS is an operation by which the loop itself computes a value from weights, with gradients.
"""


class Origin(enum.Enum):
    """Origin of a value's numbers. A trace has no numbers of a computed one; those of constants code may read."""

    COMPUTED = "from inputs or weights"
    CONSTANT = "from Python values and buffers that no forward writes"
    PARTLY = "in a container, of which some elements are computed"
    UNKNOWN = "unknown"


class Value(NamedTuple):
    """A value: what it is, and where its numbers come from.

    Attributes:
        by: In the code of a loop, the calls of models and the operators that its numbers are computed by.
        items: The elements of a tuple or list that the code writes out, None for others.
    """

    kind: Kind
    origin: Origin = Origin.UNKNOWN
    by: FrozenSet[Fact] = frozenset()
    items: Optional[Tuple[Value, ...]] = None

    @property
    def is_tensor(self) -> bool:
        return self.kind.is_tensor

    @property
    def has_tensors(self) -> bool:
        return self.kind.has_tensors

    @property
    def element(self) -> Value:
        """An element, by subscription or iteration."""
        origin = Origin.UNKNOWN if self.origin is Origin.PARTLY else self.origin
        return Value(self.kind.element, origin, self.by if self.items is None else _common(self.items))


PYTHON = Value(Kind.PYTHON, Origin.CONSTANT)
UNKNOWN = Value(Kind.UNKNOWN)
MODULE = Value(Kind.MODULE)
COMPUTED = Value(Kind.TENSOR, Origin.COMPUTED)
WEIGHT = Value(Kind.PARAMETER, Origin.COMPUTED)


def join(first: Value, second: Value) -> Value:
    """Return the common description of a value that is one or the other."""
    if first == second:
        return first
    origin = first.origin if first.origin is second.origin else Origin.UNKNOWN
    items = None
    if first.items is not None and second.items is not None and len(first.items) == len(second.items):
        items = tuple(map(join, first.items, second.items))
    return Value(
        join_kinds(first.kind, second.kind), origin, first.by & second.by | _uncertain(first.by ^ second.by), items
    )


def _uncertain(facts: FrozenSet[Fact]) -> FrozenSet[Fact]:
    """Return the operators among some facts as ones that a value may be computed by."""
    return frozenset(
        replace(fact, certain=False) for fact in facts if fact.kind not in (CALL, WITH_GRADIENTS, TRAINING)
    )


def combined(values: Iterable[Value]) -> Origin:
    """Return the origin of a result that is computed from all of some values."""
    origins = {value.origin for value in values}
    if origins & {Origin.COMPUTED, Origin.PARTLY}:
        return Origin.COMPUTED
    return Origin.UNKNOWN if Origin.UNKNOWN in origins else Origin.CONSTANT


def result(kind: Kind, values: Iterable[Value], origin: Optional[Origin] = None) -> Value:
    """Return the description of a result that is computed from all of some values, of another origin if one is given.

    A tensor that is made anew has no numbers of theirs.
    """
    found = list(values)
    return Value(kind, combined(found) if origin is None else origin, _union(found))


def _union(values: Iterable[Value]) -> FrozenSet[Fact]:
    return frozenset().union(*(value.by for value in values))


def _common(values: Iterable[Value]) -> FrozenSet[Fact]:
    first, *others = (value.by for value in values)
    return first.intersection(*others)


def container(elements: Iterable[Value]) -> Value:
    """Return the description of a list, tuple, set or dictionary with these elements."""
    found = list(elements)
    tensors = [value for value in found if value.has_tensors]
    if not tensors:
        return PYTHON if all(value.kind is Kind.PYTHON for value in found) else UNKNOWN
    origins = {value.origin for value in found}
    if len(origins) == 1 and (len(tensors) == len(found) or origins == {Origin.CONSTANT}):
        return Value(Kind.TENSORS, origins.pop(), _union(found), tuple(found))
    origin = Origin.PARTLY if combined(tensors) is Origin.COMPUTED else Origin.UNKNOWN
    return Value(Kind.TENSORS, origin, _union(found), tuple(found))
