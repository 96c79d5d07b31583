"""Hyper-parameters of a user's optimizer, compared with the last values sent to the device."""

from __future__ import annotations

import dataclasses
import operator
from typing import Any, Callable, Collection, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

import torch

from ignite_ipu.capabilities.optimizers import ON_THE_HOST
from ignite_ipu.errors import ConstantAttributeError, OptimizerError
from ignite_ipu.optimizers.conversion import REFUSED, Conversion, hyper_parameter, refuse_what_the_device_lacks
from ignite_ipu.optimizers.state import numbered_groups

_parameters: Callable[[Mapping[str, Any]], List[torch.Tensor]] = operator.itemgetter("params")
_LOSS_SCALING = "loss_scaling"


@dataclasses.dataclass(frozen=True)
class Change:
    """A hyper-parameter of a group, or of the whole optimizer, that differs from the value on the device."""

    group: Optional[int]
    attribute: str
    old: Any
    new: Any


@dataclasses.dataclass(frozen=True)
class Settings:
    """The hyper-parameters that a device was told at one moment: every group's values, and the loss scaling."""

    groups: Tuple[Tuple[Any, ...], ...]
    loss_scaling: Any


class HyperParameters:
    """Compares a user's optimizer with the last values sent to the device, and sends the differences."""

    def __init__(self, conversion: Conversion) -> None:
        self._conversion = conversion
        self._source, self._device = conversion.source, conversion.optimizer
        groups = self._source.param_groups
        self._held = [list(group["params"]) for group in groups]
        self._step = type(self._source).step
        kind = conversion.kind
        deciding = (*kind.numbers, *kind.structural, *kind.settled)
        self._names = [tuple(name for name in deciding if name in group) for group in groups]
        self._getters = [operator.itemgetter(*names) for names in self._names]
        self.told = self._now()
        # As found in the groups; only if this differs, or may have changed in place, are values converted and compared.
        self._seen: List[Any] = []

    def changes(self) -> Tuple[Change, ...]:
        """Return the differences from the last values sent to the device; parameters are compared by identity."""
        groups = self._source.param_groups
        lists = list(map(_parameters, groups))
        if list(map(len, lists)) != list(map(len, self._held)) or not all(
            [all(map(operator.is_, *pair)) for pair in zip(lists, self._held)]
        ):
            self._check_held(lists)
        if type(self._source).step is not self._step:
            raise OptimizerError(
                f"step() of the class {type(self._source).__name__} is other code than when the update was compiled, "
                f"and would never run. Register a hook (optimizer.register_step_post_hook). {ON_THE_HOST}"
            )
        seen = [get(group) for get, group in zip(self._getters, groups)]
        found = []
        if seen != self._seen:
            values = self._values()
            fixed = all(isinstance(value, (float, int, tuple)) for given in seen for value in given)
            self._seen = seen if fixed and values == self.told.groups else []
            for number, (names, old, new) in enumerate(zip(self._names, self.told.groups, values)):
                found += [Change(number, *change) for change in zip(names, old, new) if change[1] != change[2]]
        loss_scaling = getattr(self._source, _LOSS_SCALING, getattr(self._device, _LOSS_SCALING, None))
        if loss_scaling != self.told.loss_scaling:
            found.append(Change(None, _LOSS_SCALING, self.told.loss_scaling, loss_scaling))
        return tuple(found)

    def _check_held(self, lists: Sequence[Sequence[torch.Tensor]]) -> None:
        """Refuse groups with other parameters; these may be in another order."""
        sizes, before = list(map(len, lists)), list(map(len, self._held))
        if [set(map(id, each)) for each in lists] != [set(map(id, each)) for each in self._held]:
            every = [{id(each) for group in groups for each in group} for groups in (lists, self._held)]
            same = "the same parameters in other groups" if every[0] == every[1] else "other parameters"
            other = same if sizes == before else f"groups of {before}"
            raise OptimizerError(
                f"The optimizer now has groups of {sizes} parameters, but its update was made for {other}. Change "
                f"groups before the first step, or create another optimizer or trainer. {ON_THE_HOST}"
            )
        self._held = list(map(list, lists))

    @property
    def same(self) -> bool:
        """True if the groups have the values that were last found to be those on the device."""
        groups, known = self._source.param_groups, self._seen
        if len(groups) != len(known) or type(self._source).step is not self._step:
            return False
        for group, held, get, values in zip(groups, self._held, self._getters, known):
            now = group["params"]  # compared here, since a steady loop asks each time
            if len(now) != len(held) or not all(map(operator.is_, now, held)) or get(group) != values:
                return False
        loss_scaling = getattr(self._source, _LOSS_SCALING, getattr(self._device, _LOSS_SCALING, None))
        return bool(loss_scaling == self.told.loss_scaling)

    def refuse(self, changes: Sequence[Change], constants: Collection[str]) -> None:
        """Refuse changes of constants, and those with which the optimizer would not have been converted."""
        try:
            for change in changes:
                if change.attribute in constants:
                    raise _constant_changed(change, self._conversion)
            # All refusals of a conversion depend on values that are zero or False.
            if any(bool(change.old) != bool(change.new) for change in changes):
                refuse_what_the_device_lacks(self._conversion.source, self._conversion.kind)
        except OptimizerError:
            self.restore(changes)
            raise

    def apply(self, changes: Sequence[Change]) -> None:
        """Write changes into the device's optimizer, where that is not the user's."""
        if not self._conversion.passed_through:
            self._write((change, change.new) for change in changes)

    def restore(self, changes: Sequence[Change]) -> None:
        """Write the previous values into the device's optimizer."""
        self._write((change, change.old) for change in changes)

    def note_told(self) -> None:
        self.told = self._now()

    def write(self, settings: Settings) -> None:
        """Write the values of another moment into the device's optimizer."""
        for group, names, values in zip(self._device.param_groups, self._names, settings.groups):
            group.update(zip(names, values))
        if settings.loss_scaling is not None:
            setattr(self._device, _LOSS_SCALING, settings.loss_scaling)

    def groups(self, told: bool = False) -> List[Dict[str, Any]]:
        """Return the groups with numbers for parameters, as torch writes them, and as the device was told if asked."""
        groups = self._source.param_groups
        if told:
            sent = [dict(zip(names, values)) for names, values in zip(self._names, self.told.groups)]
            groups = [{**group, **values} for group, values in zip(groups, sent)]
        return numbered_groups(groups, list(map(len, self._held)))

    def _now(self) -> Settings:
        return Settings(self._values(), self._loss_scaling())

    def _values(self) -> Tuple[Tuple[Any, ...], ...]:
        """Return every group's values as PopTorch takes them."""
        return tuple(
            tuple([hyper_parameter(name, group[name]) for name in names])
            for names, group in zip(self._names, self._source.param_groups)
        )

    def _loss_scaling(self) -> Any:
        return getattr(self._source, _LOSS_SCALING, getattr(self._device, _LOSS_SCALING, None))

    def _write(self, values: Iterable[Tuple[Change, Any]]) -> None:
        for change, value in values:
            if change.group is None:
                setattr(self._device, change.attribute, value)
            else:
                self._device.param_groups[change.group][change.attribute] = value


def _constant_changed(change: Change, conversion: Conversion) -> ConstantAttributeError:
    """Return the error for a change of a constant, with the way out."""
    name = change.attribute
    where = "" if change.group is None else f" of parameter group {change.group}"
    text = (
        f"{name}{where} changed from {change.old!r} to {change.new!r}, but it is a constant of the compiled program. "
    )
    if name in REFUSED:
        text += f"With {name}={change.new!r} the optimizer could not be converted either: {REFUSED[name]}."
    elif name in (*conversion.kind.structural, *conversion.kind.settled):
        text += "It decides which update is compiled: create a new trainer with the value you want."
    elif conversion.passed_through:
        text += f"Pass {name} explicitly to poptorch.optim.{conversion.kind.name}, which makes it variable."
    else:
        text += f"Create the trainer or IPUAccelerator with variable=({name!r},) to be able to change it."
    return ConstantAttributeError(name, text)
