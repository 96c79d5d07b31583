"""Changes of hyper-parameters after the optimizer was converted, and the error for those of constants."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from ignite_ipu.optimizers.conversion import Conversion, remedy_for
from ignite_ipu.optimizers.errors import ConstantAttributeError

__all__ = ["Change", "constant_changed"]


@dataclasses.dataclass(frozen=True)
class Change:
    """A hyper-parameter that differs from what the device was told.

    Attributes:
        group: Number of the parameter group; None for a value of the whole optimizer.
        attribute: Name of the hyper-parameter.
        old: What the device has.
        new: What the user's optimizer has.
    """

    group: Optional[int]
    attribute: str
    old: Any
    new: Any

    @property
    def starts_or_ends_momentum(self) -> bool:
        """Whether there is momentum after it where there was none, or the other way round."""
        return self.attribute == "momentum" and bool(self.old) != bool(self.new)


def constant_changed(change: Change, conversion: Conversion) -> ConstantAttributeError:
    """Return the error for a change of what cannot change, with what to do."""
    name = change.attribute
    where = "" if change.group is None else f" of parameter group {change.group}"
    text = (
        f"{name}{where} changed from {change.old!r} to {change.new!r}, but it is a constant of the compiled program. "
    )
    lacking = remedy_for(name)
    if lacking is not None:
        text += f"With {name}={change.new!r} the optimizer could not be converted either: {lacking}."
    elif name in (*conversion.kind.structural, *conversion.kind.settled):
        text += "It decides which update is compiled: create a new trainer with the value you want."
    elif conversion.passed_through:
        text += f"Pass {name} explicitly to poptorch.optim.{conversion.kind.name}, which makes it variable."
    else:
        text += f"Create the trainer or IPUAccelerator with variable=({name!r},) to be able to change it."
    return ConstantAttributeError(name, text)
