"""Values in traced code: their kinds, and whether their numbers are computed in the trace or known on the host."""

from __future__ import annotations

import enum
from typing import Iterable, NamedTuple

from ignite_ipu.migration.analysis.kinds import Kind, join_kinds


class Origin(enum.Enum):
    """Origin of a value's numbers. A trace has no numbers of a computed one; those of constants code may read."""

    COMPUTED = "from inputs or weights"
    CONSTANT = "from Python values and buffers that no forward writes"
    PARTLY = "in a container, of which some elements are computed"
    UNKNOWN = "unknown"


class Value(NamedTuple):
    """A value: what it is, and where its numbers come from."""

    kind: Kind
    origin: Origin = Origin.UNKNOWN

    @property
    def is_tensor(self) -> bool:
        return self.kind.is_tensor

    @property
    def has_tensors(self) -> bool:
        return self.kind.has_tensors

    @property
    def element(self) -> Value:
        """An element, by subscription or iteration."""
        return Value(self.kind.element, Origin.UNKNOWN if self.origin is Origin.PARTLY else self.origin)


PYTHON = Value(Kind.PYTHON, Origin.CONSTANT)
UNKNOWN = Value(Kind.UNKNOWN)
MODULE = Value(Kind.MODULE)
COMPUTED = Value(Kind.TENSOR, Origin.COMPUTED)


def join(first: Value, second: Value) -> Value:
    """Return the common description of a value that is one or the other."""
    if first == second:
        return first
    origin = first.origin if first.origin is second.origin else Origin.UNKNOWN
    return Value(join_kinds(first.kind, second.kind), origin)


def combined(values: Iterable[Value]) -> Origin:
    """Return the origin of a result that is computed from all of some values."""
    origins = {value.origin for value in values}
    if origins & {Origin.COMPUTED, Origin.PARTLY}:
        return Origin.COMPUTED
    return Origin.UNKNOWN if Origin.UNKNOWN in origins else Origin.CONSTANT


def container(elements: Iterable[Value]) -> Value:
    """Return the description of a list, tuple, set or dictionary with these elements."""
    found = list(elements)
    tensors = [value for value in found if value.has_tensors]
    if not tensors:
        return PYTHON if all(value.kind is Kind.PYTHON for value in found) else UNKNOWN
    origins = {value.origin for value in found}
    if len(origins) == 1 and (len(tensors) == len(found) or origins == {Origin.CONSTANT}):
        return Value(Kind.TENSORS, origins.pop())
    return Value(Kind.TENSORS, Origin.PARTLY if combined(tensors) is Origin.COMPUTED else Origin.UNKNOWN)
