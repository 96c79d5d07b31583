"""The modes of a captured model at one moment, by which calls are alike."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Hashable, Iterator, List, Mapping, NamedTuple, Tuple

from ignite_ipu.deferred.graph.modules_then import ModulesThen

FROZEN = "parameters were frozen or unfrozen"
"""The difference between two moments of which others are trained."""


class ModesThen(NamedTuple):
    """The modes of a captured model at one moment.

    `of` is their finder, one for each model. They are the modes of its modules (`training`) and parameters (`trained`),
    the Python values that the modules' code reads, by their names, and the modules and their hooks (`parts`).
    `modules` can put back these, and the values that they hold. `calls` are the modes of each call of an update
    whose calls differ in them.
    """

    of: Any
    training: List[bool]
    trained: List[bool]
    names: List[str]
    values: List[Hashable]
    parts: List[Any]
    modules: ModulesThen
    calls: Tuple[ModesThen, ...] = ()

    @contextlib.contextmanager
    def put_back(self) -> Iterator[None]:
        """Have the model consist of the parts, and be in the modes, of this moment, for a call on the host."""
        with self.of.with_parts_of_before(), self.of.at(self):
            yield

    def agrees_with(self, other: ModesThen) -> bool:
        """Return whether they are equal; of moments of two models, whether the modules that both have are."""
        if self.of is other.of:
            return self == other
        return self.trains_like(other) and all(map(_agree, self._by_module(), other._by_module()))

    def trains_like(self, other: ModesThen) -> bool:
        """Return whether the same parameters are trained, of those that both models have."""
        if self.of is other.of:
            return self.trained == other.trained
        mine, others = [{id(p): flag for p, flag in zip(each.of.parameters, each.trained)} for each in (self, other)]
        return _agree(mine, others)

    def training_by_module(self) -> Dict[int, bool]:
        """Return the modes of modules, by the ids of their attributes."""
        return {id(own): flag for own, flag in zip(self.modules.state.moded, self.training)}

    def _by_module(self) -> Iterator[Mapping[int, Any]]:
        yield self.training_by_module()
        yield self.modules.attributes_by_module()

    def difference(self, now: ModesThen) -> str:
        if self.parts != now.parts:
            return "modules or hooks were replaced, added or removed"
        if self.training != now.training:
            return "modules were put in training or evaluation mode"
        if self.trained != now.trained:
            return FROZEN
        if self.calls != now.calls:
            return "its calls are made in other modes"
        pairs = zip(now.names, self.values, now.values)
        names = [name for name, old, new in pairs if old != new] if self.names == now.names else []
        return f"Python values that its code reads have changed ({', '.join(dict.fromkeys(names)) or 'others'})"


def _agree(mine: Mapping[int, Any], others: Mapping[int, Any]) -> bool:
    return all(mine[each] == others[each] for each in mine.keys() & others.keys())
