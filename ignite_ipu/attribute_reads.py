"""Which attributes of a model's modules its code reads while it is called.

A loop keeps books on its model: `model.epoch = epoch`, `model.history.append(loss)`. What no call reads is in no
program, and may change without another compilation.
"""

from __future__ import annotations

import contextlib
import os
import sys
import weakref
from typing import Any, Callable, Dict, Iterator, Optional, Set

import torch
from torch import nn

from ignite_ipu import backend

__all__ = ["READS", "is_read", "reads_noted"]

# What is read instead of single attributes, by code that looks for them and by copies.
_ALL = frozenset(["__dict__", "__getstate__"])
# By module, the names that calls for evaluation and for training have read.
_READ: weakref.WeakKeyDictionary[nn.Module, Dict[bool, Set[str]]] = weakref.WeakKeyDictionary()


class _Reads:
    """Counts how often reads of some model's attributes were noted: `is_read` answers the same while it stays.

    Attributes:
        noted: The count.
    """

    __slots__ = ("noted",)

    def __init__(self) -> None:
        self.noted = 0


READS = _Reads()


def is_read(module: Any, name: str, training: Optional[bool]) -> bool:
    """Tell whether code may read an attribute: some did, or no call of this module's model has been looked at.

    Args:
        module: The module, or any other object, whose attributes are not looked at.
        name: The attribute.
        training: Whether it is calls for training, or for evaluation, that count; None for all that code could do.
    """
    if training is None or not isinstance(module, nn.Module):
        return True
    read = _READ.get(module, {}).get(training)
    return read is None or name in read or not _ALL.isdisjoint(read)


@contextlib.contextmanager
def reads_noted(model: nn.Module, training: bool) -> Iterator[None]:
    """Note what is read of the modules of a model in the `with` block, in which it is called for training or not.

    PyTorch's own modules are left out: of their attributes all count.
    """
    modules = [module for module in model.modules() if not type(module).__module__.startswith("torch.")]
    noted: Dict[int, Set[str]] = {id(module): set() for module in modules}
    with contextlib.ExitStack() as stack:
        for kind in {type(module) for module in modules}:
            stack.enter_context(_noting(kind, noted))
        yield
    for module in modules:
        read = _READ.setdefault(module, {})
        if training not in read or not noted[id(module)] <= read[training]:
            read[training] = noted[id(module)] | read.get(training, set())
            READS.noted += 1


@contextlib.contextmanager
def _noting(kind: Any, noted: Dict[int, Set[str]]) -> Iterator[None]:
    """Let instances of a class note the attributes that are read of them."""
    original: Callable[[Any, str], Any] = kind.__getattribute__
    own: Optional[Any] = vars(kind).get("__getattribute__")
    libraries = tuple([os.path.dirname(str(each.__file__)) + os.sep for each in (torch, backend.poptorch())])

    def noting(self: Any, name: str) -> Any:
        names = noted.get(id(self))
        # PyTorch and PopTorch look for parameters and children in the dictionary.
        if names is not None and (name not in _ALL or not sys._getframe(1).f_code.co_filename.startswith(libraries)):
            names.add(name)
        return original(self, name)

    kind.__getattribute__ = noting
    try:
        yield
    finally:
        if own is None:
            del kind.__getattribute__
        else:
            kind.__getattribute__ = own
