"""What an operator is called after: the modules around it, and the line of the user's code."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Iterator, NamedTuple, Tuple

from torch import nn

from ignite_ipu.emulator.trace import module_calls
from ignite_ipu.emulator.trace.active import Trace

if TYPE_CHECKING:
    from ignite_ipu.emulator.options import Options


class Naming(NamedTuple):
    """What the options say of it.

    Attributes:
        excludes: Parts of file names: a stack frame of such a file is not the user's code.
        modules: Whether modules open name scopes.
    """

    excludes: Tuple[str, ...] = ()
    modules: bool = True


DEFAULT = Naming()


def from_options(options: Options) -> Naming:
    """Return the naming of one executor's options."""
    return Naming(tuple(options._source_location_excludes), options._module_namescope_enabled)


@contextlib.contextmanager
def module_scopes(capture: Trace, model: nn.Module, naming: Naming) -> Iterator[None]:
    """Let each sub-module of `model` that is called in the `with` block open a scope, named as in its parent."""
    if not naming.modules:
        yield
        return
    names = {id(module): name.rpartition(".")[2] for name, module in model.named_modules() if name}

    def enter(module: nn.Module) -> None:
        if id(module) in names:
            capture.scope.append(names[id(module)])

    def leave(module: nn.Module) -> None:
        if id(module) in names:
            capture.scope.pop()

    with module_calls.followed(enter, leave):
        yield
