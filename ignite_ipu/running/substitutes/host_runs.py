"""Models that run on the host: exported ones, and averaged ones whose batch statistics a script computes.

`torch.jit.trace`, `torch.onnx.export` and their like get an ordinary copy. It has the model's own weights if PyTorch's
results share them. PopTorch cannot trace these results, so running them is refused. Those of `torch.fx` are ordinary
models. Models and losses that call a scripted function compute the Python function.
`torch.optim.swa_utils.update_bn` makes forward passes in training mode without gradients, which only the host does.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
from typing import Any, Callable, Iterator

import torch
import torch.optim.swa_utils
from torch import nn

from ignite_ipu.capabilities import WRAPPERS, Treatment
from ignite_ipu.deferred.model.model import owner_of
from ignite_ipu.deferred.tensor.tensor import DeferredTensor
from ignite_ipu.program.forward.eager import EAGER
from ignite_ipu.running.patches import Substitutes
from ignite_ipu.torch_names.dispatch import FRAMES_OF_SCRIPT, tracing_state
from ignite_ipu.torch_names.modules import all_parameters

_SOURCE = "_ignite_ipu_source"
# Their results have the model's own parameters and buffers in PyTorch.
_SHARING = ("jit.trace", "jit.trace_module", "jit.script")
_FX = "fx.symbolic_trace"
_EXPORTS = tuple(entry.name[len("torch.") :] for entry in WRAPPERS.with_treatment(Treatment.HOST))


def substitute_exports(substitutes: Substitutes) -> None:
    """Let the script export its models, with the newest weights, and save the exports with the newest ones, too."""

    def export(path: str, line: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        parameters = inspect.signature(original).parameters
        first = next(iter(parameters))
        if (
            FRAMES_OF_SCRIPT in parameters
        ):  # of a class TorchScript looks for names in the caller's frame, here two further up
            kwargs = {**kwargs, FRAMES_OF_SCRIPT: kwargs.get(FRAMES_OF_SCRIPT, 0) + 2}
        model = args[0] if args else kwargs.get(first)
        if isinstance(model, nn.Module):
            substitutes.note(f"torch.{path}()", WRAPPERS[f"torch.{path}"].sentence, line)
            if path != _FX:
                shared = [*all_parameters(model), *model.buffers()] if path in _SHARING else []
                model = copy.deepcopy(model, {id(tensor): tensor for tensor in shared})
            args, kwargs = ((model, *args[1:]), kwargs) if args else (args, {**kwargs, first: model})
        with EAGER:
            made = original(*args, **kwargs)
        if path == "jit.script" and isinstance(made, torch.jit.ScriptFunction):
            setattr(made, _SOURCE, model)
        return made

    def scripted(frame: Any, original: Callable[..., Any], function: Any, *args: Any, **kwargs: Any) -> Any:
        # TorchScript makes tensors of the host within a trace, and fuses operators that a program is to have.
        source = getattr(function, _SOURCE, None)
        given = any(isinstance(each, DeferredTensor) for each in (*args, *kwargs.values()))
        if source is not None and (given or (EAGER.is_on and tracing_state() is None)):
            return source(*args, **kwargs)
        return original(function, *args, **kwargs)

    def save(frame: Any, original: Callable[..., Any], module: Any, *args: Any, **kwargs: Any) -> Any:
        # TorchScript reads the memory of weights without Python's notice.
        for owner in {owner for owner in map(owner_of, all_parameters(module)) if owner is not None}:
            owner.loop.session.weights.to_host()
        return original(module, *args, **kwargs)

    substitutes.calls(torch.jit.ScriptFunction, "__call__", scripted)
    # PyTorch copies the methods of a subclass into this class, and has neither with PYTORCH_JIT=0.
    for kind in (torch.jit.ScriptModule, *torch.jit.ScriptModule.__subclasses__()):
        for name in {"save", "save_to_buffer"} & vars(kind).keys():
            substitutes.calls(kind, name, save)
    for path in _EXPORTS:
        module, name = path.split(".")
        owner = getattr(torch, module, None)
        if callable(getattr(owner, name, None)):
            substitutes.own_calls(owner, name, functools.partial(export, path))


def substitute_averages(substitutes: Substitutes) -> None:
    """Let the script compute the batch statistics of an averaged model, which no update does."""
    update_bn: Any = torch.optim.swa_utils.update_bn
    signature = inspect.signature(update_bn)

    def on_the_host(line: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        substitutes.note("update_bn()", "forward passes on the host", line)
        model = signature.bind(*args, **kwargs).arguments["model"]
        with EAGER, _kept_buffers(model):
            return original(*args, **kwargs)

    substitutes.set_everywhere("torch", update_bn, substitutes.of_own_calls(update_bn, on_the_host))


@contextlib.contextmanager
def _kept_buffers(model: nn.Module) -> Iterator[None]:
    """Write the new statistics into the previous buffers, which the device uses: PyTorch 2.0 makes new ones."""
    named = [(module, name) for module in model.modules() for name, _ in module.named_buffers(recurse=False)]
    before = [getattr(module, name) for module, name in named]
    try:
        yield
    finally:
        for (module, name), buffer in zip(named, before):
            new = getattr(module, name)
            if new is not buffer:
                setattr(module, name, buffer.copy_(new))
