"""Modes of modules, which of their parameters are trained, and the tensors that they are given."""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import Any, Dict, FrozenSet, Iterable, Iterator, List, Optional, Sequence

import torch
from torch import nn
from torch.nn.modules import module as _of_all_modules

from ignite_ipu.errors import listed
from ignite_ipu.program.tensors.raw import named_tensors, requires_grad

__all__ = ["NEVER", "REGISTRATIONS", "Trainable", "modes_kept", "modes_of"]

NEVER = -1
"""No count of registrations: what somebody remembers who has yet to look."""

_MOST_NAMES = 4


def modes_of(model: nn.Module) -> List[bool]:
    """Return whether each module of a model is in training mode."""
    return [module.training for module in model.modules()]


@contextlib.contextmanager
def modes_kept(model: nn.Module, modes: Optional[Sequence[bool]] = None) -> Iterator[None]:
    """Put modules back into their modes after the `with` block, which begins with them in `modes`, if given."""
    modules = list(model.modules())
    before = [module.training for module in modules]
    try:
        _set_modes(modules, modes or before)
        yield
    finally:
        _set_modes(modules, before)


def _set_modes(modules: Sequence[nn.Module], modes: Sequence[bool]) -> None:
    for module, mode in zip(modules, modes):
        vars(module)["training"] = mode  # calls none of a model's code


class Trainable:
    """Parameters of a module that were trained when its program was compiled, which has gradients of these alone.

    Args:
        module: The module that is compiled.
    """

    def __init__(self, module: nn.Module) -> None:
        # Without a look at those of a wrapped module, which would download; of several names the first counts.
        held = named_tensors(module, "_parameters")
        first = {id(tensor): name for name, tensor in reversed(held.items())}
        self._parameters: Dict[str, torch.Tensor] = {first[id(tensor)]: tensor for tensor in held.values()}
        self._compiled = self._now()

    def names(self) -> List[str]:
        """Return the names of the parameters that are trained now."""
        return [name for name, trained in zip(self._parameters, self._now()) if trained]

    def note(self) -> None:
        """Remember the parameters that are trained now as the ones of the program."""
        self._compiled = self._now()

    def change(self) -> str:
        """Return in words which parameters were frozen or unfrozen since then; empty for none."""
        now = self._now()
        if now == self._compiled:
            return ""
        flags = list(zip(self._parameters, self._compiled, now))
        frozen = [name for name, before, after in flags if before > after]
        unfrozen = [name for name, before, after in flags if before < after]
        named = {"frozen": frozen, "unfrozen": unfrozen}
        return " and ".join(
            f"{len(names)} {what} ({listed(names, _MOST_NAMES)})" for what, names in named.items() if names
        )

    def _now(self) -> List[bool]:
        with torch._C.DisableTorchFunctionSubclass():
            return list(map(requires_grad, self._parameters.values()))


class _Here(threading.local):
    """Number of blocks that are open in this thread in which nothing is counted."""

    uncounted = 0


class _Registrations:
    """Registrations of parameters, buffers and modules in the modules that somebody follows.

    PyTorch calls hooks for that, of all modules of the process, which are installed with the first model. For what it
    does not call them for, others are noticed when somebody looks.

    Attributes:
        count: How many there were; the same number means that there was none in between.
    """

    __slots__ = ("_followers", "_here", "_modules", "count")

    def __init__(self) -> None:
        self.count = 0
        self._here = _Here()
        self._followers: Optional[weakref.WeakKeyDictionary[Any, FrozenSet[int]]] = None
        # By id. Some may be another module's by now, or of a follower that is gone: then one is counted too many.
        self._modules: FrozenSet[int] = frozenset()

    def follow(self, follower: Any, modules: Iterable[nn.Module]) -> None:
        """Count what these modules are given, in place of those before, as long as the follower lives."""
        if self._followers is None:
            self._followers = weakref.WeakKeyDictionary()
            _of_all_modules.register_module_parameter_registration_hook(self._note)
            _of_all_modules.register_module_buffer_registration_hook(self._note)
            _of_all_modules.register_module_module_registration_hook(self._note)
        found = frozenset(map(id, modules))
        if self._followers.get(follower) != found:
            self._followers[follower] = found
            self._modules = frozenset().union(*self._followers.values())

    @contextlib.contextmanager
    def uncounted(self) -> Iterator[None]:
        """Count nothing that this thread registers in the `with` block."""
        self._here.uncounted += 1
        try:
            yield
        finally:
            self._here.uncounted -= 1

    def _note(self, module: nn.Module, name: str, tensor: Any) -> None:
        if id(module) in self._modules and not self._here.uncounted:
            self.count += 1


REGISTRATIONS = _Registrations()
"""Those of this process, so that nobody has to look for tensors that a model was given."""
