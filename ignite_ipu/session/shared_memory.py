"""Refusal of models that have two tensors with memory in common, of which a program changes one.

In PyTorch both change. A device keeps a copy of each registered tensor, and a program has plain attributes as
constants.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Collection, Dict, Optional, Sequence, Set, Tuple

import torch
from torch import nn

from ignite_ipu.capabilities.traced import SHARED
from ignite_ipu.errors import SessionError
from ignite_ipu.program.forward.module_attributes import tensors_in
from ignite_ipu.program.step import BatchStep
from ignite_ipu.program.tensors.raw import named_tensors, requires_grad, tensors_of
from ignite_ipu.program.tensors.sharing import overlapping
from ignite_ipu.program.tensors.trees import PLAIN
from ignite_ipu.program.traced_places import refusal_at
from ignite_ipu.torch_names.dispatch import DispatchMode, tree_flatten
from ignite_ipu.torch_names.modules import (
    BUFFERS,
    FORWARD_HOOKS,
    PARAMETERS,
    all_named_modules,
    attributes_of_modules,
)
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass

# The attributes that PyTorch gives every module, but for the hooks that its calls run.
_WITHOUT_TENSORS = frozenset(attributes_of_modules()).difference(FORWARD_HOOKS)
_COLLECTIONS = frozenset((dict, OrderedDict, list, tuple, set, frozenset))


def refuse_shared_writes(step: BatchStep, leaves: Sequence[Any], micro_batches: int, trains: bool) -> None:
    """Refuse two tensors with elements in common, of which calls of a step change one.

    Calls write into buffers, and change weights if the step `trains`. Whether they use an attribute, a call on the host
    for a batch's leaves finds out. Weights that share memory with registered tensors are left to the optimizer.

    Raises:
        SessionError: There are such tensors.
    """
    modules = all_named_modules(step)
    registered = tensors_of(modules)
    attributes = _attributes(modules, set(map(id, registered.values())))
    pairs = list(overlapping([*registered.items(), *attributes.items()]))
    if not pairs:
        return
    buffers = named_tensors(step, BUFFERS)
    reads = _Reads(attributes)
    written: Optional[Collection[str]] = step.written.on_host(step, step, list(buffers), leaves, micro_batches, reads)
    if written is None:  # the host cannot call it
        written, reads.found = buffers, set(attributes)
    with DisableTorchFunctionSubclass():
        weights = {name for name, each in named_tensors(step, PARAMETERS).items() if trains and requires_grad(each)}
    for one, other in pairs:
        has_attribute = one in attributes or other in attributes
        if has_attribute and reads.found.isdisjoint((one, other)):
            continue
        changing = {*written, *(weights if has_attribute else ())}
        for changed, unchanged in ((one, other), (other, one)):
            if changed in changing:
                forward, prefix = f"{type(step.model).__qualname__}.forward", "model."
                names = [name[len(prefix) :] if name.startswith(prefix) else name for name in (changed, unchanged)]
                raise SessionError(refusal_at(SHARED, None, forward, "{} and {}".format(*names)))


def _attributes(modules: Sequence[Tuple[str, nn.Module]], registered: Collection[int]) -> Dict[str, torch.Tensor]:
    """Return the tensors in plain attributes of modules by name, without registered tensors."""
    found: Dict[str, torch.Tensor] = {}
    for path, module in modules:
        for name, value in module.__dict__.items():
            kind = type(value)
            if name in _WITHOUT_TENSORS or kind in PLAIN or (kind in _COLLECTIONS and not value):
                continue
            if kind is tuple and PLAIN.issuperset(map(type, value)):
                continue
            for number, tensor in enumerate(tensors_in(value)):
                if id(tensor) not in registered:
                    within = f"[{number}]" if value is not tensor else ""
                    found[f"{path}.{name}{within}" if path else name] = tensor
    return found


class _Reads(DispatchMode):  # type: ignore[no-untyped-call]
    """Context that finds out which of some tensors, given by name, are arguments of operators in it."""

    def __init__(self, named: Dict[str, torch.Tensor]) -> None:
        super().__init__()
        self._names = {id(tensor): name for name, tensor in named.items()}
        self.found: Set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Optional[Dict[str, Any]] = None
    ) -> Any:
        given = map(id, tree_flatten((args, kwargs))[0])
        self.found.update(self._names[each] for each in given if each in self._names)
        return func(*args, **(kwargs or {}))
