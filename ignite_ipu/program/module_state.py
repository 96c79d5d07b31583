"""Modes of modules, and how many tensors and modules were registered in modules."""

from __future__ import annotations

import contextlib
import weakref
from typing import Any, Iterable, Iterator, List, Optional, Protocol, Sequence

from torch import nn
from torch.nn.modules import module as _of_all_modules

from ignite_ipu.torch_names.modules import all_modules

NEVER = -1
"""No count of registrations: what somebody remembers who has yet to look."""


def modes_of(model: nn.Module) -> List[bool]:
    """Return whether each module of a model is in training mode."""
    return [module.training for module in all_modules(model)]


@contextlib.contextmanager
def modes_kept(model: nn.Module, modes: Optional[Sequence[bool]] = None) -> Iterator[None]:
    """Put modules back into their modes after the `with` block, which begins with them in `modes`, if given."""
    modules = all_modules(model)
    before = [module.training for module in modules]
    try:
        _set_modes(modules, modes or before)
        yield
    finally:
        _set_modes(modules, before)


def _set_modes(modules: Sequence[nn.Module], modes: Sequence[bool]) -> None:
    for module, mode in zip(modules, modes):
        vars(module)["training"] = mode  # calls none of a model's code


class RegistrationObserver(Protocol):
    """Object that acts before a module gets another tensor or module, and may return one to put in its place."""

    def before_registration(self, module: nn.Module, given: Any) -> Any: ...


class _Registrations:
    """Registrations of parameters, buffers and modules in modules, of which PyTorch tells hooks, which this installs.

    While their `count` is the same, there was none in between. The `observers` are called before each.
    """

    count = 0

    def __init__(self) -> None:
        self._is_installed = False
        self.observers: weakref.WeakSet[RegistrationObserver] = weakref.WeakSet()

    def follow(self) -> None:
        if not self._is_installed:
            self._is_installed = True
            for kind in ("parameter", "buffer", "module"):
                getattr(_of_all_modules, f"register_module_{kind}_registration_hook")(self._note)

    def observe(self, observer: RegistrationObserver) -> None:
        """Have an observer act before each registration, until it is gone or is removed from `observers`."""
        self.follow()
        self.observers.add(observer)

    def _note(self, module: nn.Module, name: str, given: Any) -> Any:
        other = None
        for observer in list(self.observers):
            found = observer.before_registration(module, given)
            other = found if found is not None else other
        self.count += given is not None
        return other


REGISTRATIONS = _Registrations()
"""Those of this process, so that nobody has to look for tensors that a model was given."""


class _RunByPython:
    """Modules whose code Python runs in each call, so that no value of it is a constant of a program.

    Until updates of earlier calls are made, by programs with the code, its values are constants all the same. While the
    `count` is the same, the modules are, too.
    """

    count = 0

    def __init__(self) -> None:
        self._modules: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._in_programs: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    def __contains__(self, module: object) -> bool:
        return isinstance(module, nn.Module) and module in self._modules

    def has_no_constants(self, part: object) -> bool:
        """Return whether a part of a program is such a module, and no program of earlier calls has its code."""
        return part in self and part not in self._in_programs

    def update(
        self, added: Iterable[nn.Module] = (), removed: Iterable[nn.Module] = (), in_programs: bool = False
    ) -> None:
        """Note modules that Python runs from now on, `in_programs` of earlier calls or not, or `removed` ones."""
        more, fewer = set(added), set(removed)
        self._modules.update(more)
        self._modules.difference_update(fewer)
        self._in_programs.difference_update(more | fewer)
        self._in_programs.update(more if in_programs else ())
        self.count += 1


RUN_BY_PYTHON = _RunByPython()
