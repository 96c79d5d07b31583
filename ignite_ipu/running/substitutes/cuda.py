"""`torch.cuda` for a script: there is one device, and its work happens elsewhere.

Only calls from the script's own lines are answered so. A library that calls them gets the true answer.
"""

from __future__ import annotations

import functools
import inspect
from types import FunctionType
from typing import Any

import torch

from ignite_ipu.capabilities import Capability, Treatment, gpu_capability, gpu_functions
from ignite_ipu.capabilities.gpu import ACCELERATOR, CUDA
from ignite_ipu.running.patches import Substitutes
from ignite_ipu.running.substitutes.cuda_streams import substitute_streams


def substitute_cuda(substitutes: Substitutes) -> None:
    """Answer the script's questions to `torch.cuda` and `torch.accelerator` as the table of capabilities has it."""
    noted = False

    def figure(entry: Capability, line: Any, original: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal noted
        if not noted:
            substitutes.note(f"torch.cuda.{original.__name__}()", f"{entry.answer!r}: {entry.sentence}", line)
            noted = True
        return entry.answer

    for module in (CUDA, ACCELERATOR):
        for entry in gpu_functions(module, Treatment.ANSWERED, Treatment.LEFT_OUT):
            owner = _owner(entry)
            kind = getattr(owner, entry.last, None)
            if inspect.isclass(kind):  # a context
                substitutes.answer(kind, "__enter__", f"{entry.name}()")
                substitutes.own_calls(kind, "__exit__", lambda *args: None)
            elif callable(kind):
                substitutes.answer(owner, entry.last, f"{entry.name}()", entry.answer)
        for entry in gpu_functions(module, Treatment.FIGURE):
            for owner in (_owner(entry), torch.cuda.memory):
                if callable(getattr(owner, entry.last, None)):
                    substitutes.own_calls(owner, entry.last, functools.partial(figure, entry), packages=False)
    if hasattr(torch, "accelerator"):
        substitutes.answer(torch.accelerator, "current_accelerator", "torch.accelerator.current_accelerator()", _CUDA)
    substitute_streams(substitutes)
    for entry in gpu_functions(CUDA, Treatment.REFUSED):
        kind = getattr(torch.cuda, entry.last, None)
        if inspect.isclass(kind):
            constructor = "__new__" if "__new__" in vars(kind) else "__init__"
            substitutes.refuse(kind, constructor, f"{entry.name}()", entry.refusal)
    for name in torch.cuda.__all__:
        known = gpu_capability(name)
        if isinstance(getattr(torch.cuda, name, None), FunctionType) and known.treatment is Treatment.REFUSED:
            substitutes.refuse(torch.cuda, name, f"torch.cuda.{name}()", known.refusal)


_CUDA = torch.device("cuda")


def _owner(entry: Capability) -> Any:
    """Return the module that has an entry's name, None if this PyTorch has no such module."""
    owner: Any = torch
    for part in entry.name.split(".")[1:-1]:
        owner = getattr(owner, part, None)
    return owner
