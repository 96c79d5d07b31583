"""Files of PyTorch's own code by which frames and errors are recognised, and its compiler."""

from __future__ import annotations

import os
from typing import Any

import torch

from ignite_ipu.torch_names.table import Name

__all__ = [
    "CHOOSING",
    "COMPILER",
    "COMPILER_FILE",
    "PASSING_ON",
    "SHAPE_INFERENCE",
    "TRANSFORMS",
    "inductor",
    "is_of_compiler",
]

ROOT = os.path.dirname(torch.__file__) + os.sep
"""Folder of PyTorch."""


def _file(path: str, since: str, lost: str) -> str:
    """Enter a module into the table and return its file, or its folder for a package."""
    relative = os.path.join(*path.split(".")[1:])

    def exists() -> bool:
        return os.path.isdir(ROOT + relative) or os.path.isfile(f"{ROOT}{relative}.py")

    Name(path, since, lost, check=exists, fallback=None)
    return ROOT + relative + (os.sep if os.path.isdir(ROOT + relative) else ".py")


PASSING_ON = tuple(ROOT + name for name in ("overrides.py", "_tensor.py"))
"""Files that pass a call of a tensor's method on to a context of functions, or to a subclass."""
CHOOSING = tuple(ROOT + name for name in ("functional.py", "_jit_internal.py"))
"""Files that choose an operator by the arguments of a function."""
TRANSFORMS = _file(
    "torch._functorch", "2.0", "With PyTorch 2.0, torch.func of deferred values is refused as a scripted function is."
)
"""Folder of the code behind `torch.func`."""
_INFERS = "An error within PyTorch's inference of shapes shows its text without the operator."
SHAPE_INFERENCE = tuple(
    _file(f"torch.{name}", "2.0", _INFERS)
    for name in ("_meta_registrations", "_decomp", "_refs", "_prims", "_subclasses")
)
"""Files and folders of the code that infers shapes and types of results."""
COMPILER = "torch._dynamo"
"""The package of `torch.compile`."""
_COMPILED = "A function that torch.compile made, called in a model, is refused with PyTorch's own message."
COMPILER_FILE = _file("torch._dynamo.convert_frame", "2.0", _COMPILED)
"""The file from which `torch.compile` raises its errors."""
COMPILER_FOLDER = _file("torch._dynamo", "2.0", "A captured model in torch.compile is refused as one in torch.func.")
"""Folder of the code of `torch.compile`."""

_INDUCTOR = Name("torch._inductor.compile", "2.1", "The emulator computes without PyTorch's compiler: more slowly.")


def is_of_compiler(kind: type) -> bool:
    """Return whether a class is one of the package of `torch.compile`."""
    return kind.__module__.startswith(COMPILER)


def inductor() -> Any:
    """Return the function of PyTorch that compiles a graph of its operators; importing it takes a second."""
    return _INDUCTOR.get()
