"""Plain attributes of modules, restored after a trace that has left its tensors in them.

Layers keep tensors beside their weights: hooks set `layer.weight` from the parameters of pruning or `weight_norm`, and
`forward` keeps an attention map or a table for the next call. After a trace PopTorch restores weights and buffers, and
nothing else. An attribute that was set in the trace holds a tensor without values, which code on the host cannot use.
"""

from __future__ import annotations

from operator import is_
from typing import Any, Callable, Container, Dict, List, Optional, Tuple

import torch
from torch import nn
from torch.distributions import Distribution

from ignite_ipu.errors import logger
from ignite_ipu.program.guards.values import leave_behind
from ignite_ipu.program.tensors.trees import leaves_of, restore_contents
from ignite_ipu.torch_names.modules import BUFFERS, MODULES, PARAMETERS, all_named_modules
from ignite_ipu.torch_names.tensors import DisableTorchFunction

_TENSORS_OF_MODULES = (PARAMETERS, BUFFERS, MODULES)  # of which others take care
_COLLECTIONS = frozenset((list, dict))
_Own = Dict[str, Any]
SCALARS = (bool, int, float, str)
"""The types of attributes that code decides by: flags, numbers and names."""


class ModuleAttributes:
    """The plain attributes that a module and those in it have now."""

    def __init__(self, module: nn.Module) -> None:
        # Path of each module, its attributes, those that it has now, and the collections among these, with their
        # contents unless they are empty.
        self._before: List[Tuple[str, _Own, _Own, _Own, List[Any]]] = []
        for path, each in all_named_modules(module):
            own = each.__dict__
            plain = plain_attributes(own)
            collections = _collections(plain)
            full = {name: value.copy() for name, value in collections if value}
            self._before.append((path, own, plain, full, [value for _, value in collections]))

    @property
    def are_unchanged(self) -> bool:
        """True if the modules have the same attributes still, none of which may have been written into."""
        return all([_is_as_before(own, before, written) for _, own, before, _, written in self._before])

    def differing(self, later: ModuleAttributes) -> Dict[str, Any]:
        """Return the attributes that have other values or contents later, by path with the later values."""
        then = {path: (plain, full) for path, _, plain, full, _ in later._before}
        found: Dict[str, Any] = {}
        for path, _, before, full, _ in self._before:
            now, contents = then.get(path, ({}, {}))
            if not (full or contents) and len(now) == len(before) and _are(now, before):
                continue
            for name in dict.fromkeys([*before, *now]):
                same = name in before and name in now and _are_same(before[name], now[name])
                if not (same and _have_same(full.get(name, ()), contents.get(name, ()))):
                    found[f"{path}.{name}" if path else name] = now.get(name)
        return found

    def settle(self, value_of: Callable[[torch.Tensor], Optional[torch.Tensor]]) -> None:
        """Put constants of a trace that have replaced tensors there as the host has them, as in eager PyTorch.

        Args:
            value_of: Returns the values of a traced tensor that depends on no data, None for others.
        """
        for _, own, before, _, _ in self._before:
            for name, former in () if _are(own, before) else before.items():
                if own.get(name) is not former:
                    value = constant_of(former, own.get(name), value_of)
                    if value is not None:
                        own[name] = before[name] = value

    def put_back(self, always: bool = False, but: Container[str] = (), kept: Container[str] = ()) -> None:
        """Give every module in which there are tensors now that were not there its attributes back, all together.

        `always` gives all modules theirs, and says nothing of it; attributes named in `but` stay as they are now. Those
        of the paths in `kept` get the device's values otherwise.
        """
        left: List[str] = []
        stale: List[torch.Tensor] = []
        for path, own, before, full, written in self._before:
            if _is_as_before(own, before, written):
                continue
            now = plain_attributes(own)
            empty: _Own = dict.fromkeys([name for name, _ in _collections(before)], ())
            held = {**before, **empty, **full}
            known = {id(tensor) for contents in held.values() for tensor in tensors_in(contents)}
            new = [name for name, value in now.items() if any(id(tensor) not in known for tensor in tensors_in(value))]
            if not new and not always:
                continue
            names = [name for name in new if not self._showed_weights(held.get(name)) and f"{path}.{name}" not in kept]
            left += [f"{path}.{name}" for name in names]
            stale += [each for name in names for each in tensors_in(held.get(name))]
            for name in now.keys() - before.keys():
                if name not in but:
                    del own[name]
            for name, value in before.items():
                if name in but:
                    continue
                own[name] = value
                if type(value) in _COLLECTIONS:
                    restore_contents(value, dict(held[name]) if type(value) is dict else held[name])
        if left and not always:
            for each in stale:
                if type(each) is torch.Tensor:
                    leave_behind(each)
            logger.warning(
                "%s: tensors that were kept while the model was traced are the device's, which computes them in each "
                "call. On the host these attributes are restored, and are not the newest.",
                ", ".join(left),
            )

    def _showed_weights(self, before: Any) -> bool:
        """Return whether an attribute held weights alone, as a recurrent layer's list, which shows the newest ones."""
        shown = tensors_in(before)
        owned = [own[kind].values() for _, own, *_ in self._before for kind in _TENSORS_OF_MODULES]
        weights = {id(each) for values in owned for each in values}
        return bool(shown) and all(id(tensor) in weights for tensor in shown)


def constant_of(
    before: Any, now: Any, value_of: Callable[[torch.Tensor], Optional[torch.Tensor]]
) -> Optional[torch.Tensor]:
    """Return the host's tensor for one of the trace that has replaced a tensor of the host, None if it has none."""
    if type(before) is not torch.Tensor or not isinstance(now, torch.Tensor):
        return None
    value = value_of(now)
    if value is None or value is before:
        return value
    with DisableTorchFunction():
        same = value.dtype is before.dtype and value.shape == before.shape and torch.equal(value, before)
    return before if same else value


def plain_attributes(own: _Own) -> _Own:
    """Return those of a module's attributes that are no tables of weights, buffers or modules."""
    plain = dict(own)
    for name in _TENSORS_OF_MODULES:
        plain.pop(name, None)
    return plain


def _collections(plain: _Own) -> List[Tuple[str, Any]]:
    """Return the lists and dictionaries among attributes, which may be written into: most modules have none."""
    if _COLLECTIONS.isdisjoint(map(type, plain.values())):
        return []
    return [(name, value) for name, value in plain.items() if type(value) in _COLLECTIONS]


def tensors_in(value: Any) -> List[torch.Tensor]:
    """Return the tensors in an attribute: in containers, and among the attributes of an object, but no further.

    A distribution may be made of others.
    """
    found: List[torch.Tensor] = []
    for leaf in leaves_of(value, records=False):
        held = (leaf,) if isinstance(leaf, torch.Tensor) else getattr(leaf, "__dict__", {}).values()
        for each in held:
            if isinstance(each, torch.Tensor):
                found.append(each)
            elif isinstance(each, Distribution):
                found += tensors_in(each)
    return found


def _are_same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and type(one) in SCALARS and bool(one == other))


def _have_same(one: Any, other: Any) -> bool:
    """Return whether two lists, or two dictionaries, have the same elements."""
    if len(one) != len(other) or (isinstance(one, dict) and one.keys() != other.keys()):
        return False
    pairs = zip(one, other) if not isinstance(one, dict) else [(value, other[key]) for key, value in one.items()]
    return all(_are_same(*pair) for pair in pairs)


def _is_as_before(own: _Own, before: _Own, collections: List[Any]) -> bool:
    """Return whether a module has the same attributes, and collections that are empty still: a fast answer."""
    return len(own) == len(before) + len(_TENSORS_OF_MODULES) and _are(own, before) and not any(collections)


def _are(own: _Own, before: _Own) -> bool:
    """Return whether all attributes from before are the same objects now."""
    return all(map(is_, map(own.get, before), before.values()))
