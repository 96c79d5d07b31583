"""Buffers that a forward assigns, as in `self.mean = 0.9 * self.mean + 0.1 * x.mean(0)`, and attributes used like them.

A device keeps the tensors that a program was compiled with. So a call has a copy in the place of such a buffer, and
the buffer is written when the call ends. Values that the call has used or returned before stay as they are.
"""

from __future__ import annotations

import contextlib
import weakref
from operator import is_
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

import torch
from torch import nn

from ignite_ipu.errors import CaptureError, listed, logger
from ignite_ipu.program.module_state import REGISTRATIONS
from ignite_ipu.program.user_code import current_line
from ignite_ipu.torch_names.modules import BUFFERS, all_modules
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass, version_of

# By the class of the module, so that copies of a module are known, too.
_ASSIGNED: weakref.WeakKeyDictionary[type, Set[str]] = weakref.WeakKeyDictionary()


class _Replaced(NamedTuple):
    """A tensor in a table of a module's, and the one that a call has put in its place."""

    module: nn.Module
    table: Dict[str, Any]
    name: str
    before: torch.Tensor
    now: torch.Tensor


class Assignments:
    """Finds the buffers of a model that each call assigns, and the plain attributes that each call goes on from.

    Both are known by a second call: it assigns them again, and reads the attributes before.
    """

    def __init__(self, model: nn.Module) -> None:
        tables = [(module, table) for module in all_modules(model) for table in (vars(module), vars(module)[BUFFERS])]
        self._before = [(module, table, dict(table)) for module, table in tables]

    @property
    def are_possible(self) -> bool:
        """True if there are other tensors than before in attributes of modules, or among their buffers."""
        return any(
            isinstance(value, torch.Tensor) and before.get(name) is not value
            for _, table, before in self._before
            if not (len(table) == len(before) and all(map(is_, table.values(), before.values())))
            for name, value in table.items()
        )

    def find(self, call: Callable[[], Sequence[torch.Tensor]], registers: bool) -> List[torch.Tensor]:
        """Find them after a first call, if it has assigned any, by a second one.

        Args:
            call: Makes the second call, and returns the tensors that it has read and not computed.
            registers: Whether attributes may become buffers now, which no state dictionary contains.

        Returns:
            The attributes that have become buffers, with the values before the first call.
        """
        first = [
            _Replaced(module, table, name, tensor, table[name])
            for module, table, before in self._before
            for name, tensor in before.items()
            if isinstance(tensor, torch.Tensor) and _goes_on(tensor, table.get(name))
        ]
        if not first:
            return []
        read = {id(each) for each in call()}
        registered: Dict[str, torch.Tensor] = {}
        for module, table, name, before, now in first:
            if not _goes_on(now, table.get(name)):
                continue
            is_buffer = table is not vars(module)
            if not is_buffer:
                if not (registers and id(now) in read):
                    continue
                del table[name]
                module.register_buffer(name, before, persistent=False)
                registered[name] = before
            _ASSIGNED.setdefault(module.__class__, set()).add(name)
            vars(module)[BUFFERS][name] = before
        if registered:
            text = "Each call of %s goes on from %s, which are buffers from now on, in no state_dict."
            logger.info(text, type(self._before[0][0]).__qualname__, listed(list(registered)))
        return list(registered.values())


def _goes_on(before: torch.Tensor, now: Any) -> bool:
    """Return whether a tensor is another one of the same kind, and no gradient flows through either."""
    if now is before or not isinstance(now, torch.Tensor) or isinstance(before, nn.Parameter):
        return False
    with DisableTorchFunctionSubclass():
        kinds = [(each.shape, each.dtype, each.requires_grad) for each in (before, now)]
    return kinds[0] == kinds[1] and not kinds[1][2]


def is_assignment(module: nn.Module, name: str, before: torch.Tensor, now: Optional[torch.Tensor]) -> bool:
    """Return whether a call has assigned a buffer of a module, as its calls do, a tensor of the same kind."""
    return _goes_on(before, now) and is_assigned(module, name)


def is_assigned(module: nn.Module, name: str) -> bool:
    """Return whether calls of modules of a class assign their buffer of this name."""
    return any(name in _ASSIGNED.get(base, ()) for base in module.__class__.__mro__)


@contextlib.contextmanager
def assignments_written(model: nn.Module) -> Iterator[None]:
    """Have the buffers that a call in the `with` block assigns written when it ends."""
    tables = [(module, vars(module)[BUFFERS]) for module in all_modules(model)] if _ASSIGNED else []
    copied = [
        (table, name, buffer, buffer.clone())
        for module, table in tables
        for name, buffer in table.items()
        if buffer is not None and is_assigned(module, name)
    ]
    versions = [version_of(copy) for _, _, _, copy in copied]
    for table, name, _, copy in copied:
        table[name] = copy
    written = []
    try:
        yield
        written = [
            (buffer, table[name])
            for (table, name, buffer, copy), version in zip(copied, versions)
            if table[name] is not copy or version_of(copy) != version
        ]
    finally:
        for table, name, buffer, _ in copied:
            table[name] = buffer
    forward = f"The forward of {type(model).__qualname__}, called at {current_line()},"
    for buffer, value in written:
        if value.requires_grad:
            raise CaptureError(
                f"{forward} assigns a buffer a value through which gradients flow. A compiled program keeps the value "
                "alone. Assign value.detach()."
            )
        if value.shape != buffer.shape:
            raise CaptureError(
                f"{forward} assigns a tensor of shape {tuple(value.shape)} to a buffer of shape "
                f"{tuple(buffer.shape)}. A device keeps the shape that the program was compiled with. Give the buffer "
                "its longest shape before, and write a part of it."
            )
    with torch.no_grad():
        for buffer, value in written:
            buffer.copy_(value)


class AssignedInPlace:
    """Context in which Python calls a model: buffers that are assigned tensors of the same kind are written instead.

    The one tensor stays for the device, for optimizers and for whoever else holds it.
    """

    def __init__(self) -> None:
        self._before: Dict[int, Tuple[Dict[str, Any], Dict[str, Any]]] = {}

    def before_registration(self, module: nn.Module, given: Any) -> None:
        table = vars(module)[BUFFERS]
        self._before.setdefault(id(table), (table, dict(table)))

    def __enter__(self) -> None:
        REGISTRATIONS.observe(self)

    def __exit__(self, *error: Any) -> None:
        REGISTRATIONS.observers.discard(self)
        for table, before in self._before.values():
            for name, buffer in before.items():
                now = table.get(name)
                if buffer is not None and _goes_on(buffer, now):
                    table[name] = buffer
                    with torch.no_grad():
                        buffer.copy_(now)
