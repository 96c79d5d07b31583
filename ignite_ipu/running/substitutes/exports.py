"""Exports of a model: `torch.jit.trace`, `torch.onnx.export` and their like get an ordinary copy of it on the host.

What they return is no Python that PopTorch could trace, so running it is refused.
"""

from __future__ import annotations

import copy
import functools
import inspect
from typing import Any, Callable

import torch
from torch import nn

from ignite_ipu.program.forward.eager import natively
from ignite_ipu.running.patches import Substitutes

__all__ = ["is_exported", "substitute_exports"]

_EXPORTS = ("jit.trace", "jit.trace_module", "jit.script", "onnx.export", "export.export", "fx.symbolic_trace")


def substitute_exports(substitutes: Substitutes) -> None:
    """Let the script export copies of its models, with the newest weights."""

    def export(path: str, line: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        first = next(iter(inspect.signature(original).parameters))
        model = args[0] if args else kwargs.get(first)
        if isinstance(model, nn.Module):
            substitutes.journal.note(line, f"torch.{path}()", "is made of a copy of the model on the host")
            model = copy.deepcopy(model)
            args, kwargs = ((model, *args[1:]), kwargs) if args else (args, {**kwargs, first: model})
        with natively():
            return original(*args, **kwargs)

    for path in _EXPORTS:
        module, name = path.split(".")
        owner = getattr(torch, module, None)
        if callable(getattr(owner, name, None)):
            substitutes.own_calls(owner, name, functools.partial(export, path))


def is_exported(module: nn.Module) -> bool:
    """Tell whether a module is what `torch.jit` made of one."""
    return isinstance(module, torch.jit.ScriptModule)
