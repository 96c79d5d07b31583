"""Model libraries detect a trace in their own ways."""

from __future__ import annotations

import functools
import inspect
import weakref
from contextlib import ExitStack, contextmanager
from typing import Any, Callable, ContextManager, Iterable, Iterator, List, Optional
from unittest import mock

import torch
import torch.utils.checkpoint
from torch import nn

from ignite_ipu.errors import LossError, listed, logger
from ignite_ipu.program.tensors.raw import plain, requires_grad
from ignite_ipu.torch_names.dispatch import NESTED_FROM_MASK
from ignite_ipu.torch_names.modules import CHECKPOINT_CALL, CHECKPOINT_GENERATORS

# Arguments for causal masks, by PyTorch's layers that inspect the mask themselves if these are None.
_HINTS = ((nn.TransformerEncoder, "is_causal"), (nn.TransformerDecoder, "tgt_is_causal"))

_signature_of = functools.lru_cache(maxsize=8)(inspect.signature)
"""Finding a signature takes longer than all else that a trace of a small model is prepared with."""

_WARNED: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def _is_tracing() -> bool:
    return True


@contextmanager
def declared_as_tracing(recorded: Optional[bool] = None) -> Iterator[None]:
    """Disable reads of a mask's values in the `with` block, in which a model has no values.

    Model libraries such as transformers ask `torch.jit.is_tracing()` before they do, to take a shortcut, and PopTorch
    does not answer for them. PyTorch's transformers look whether a mask is causal, where they are not told, to choose a
    faster kernel, which computes the same. Their encoders look whether padding is at the end of each sequence, to leave
    it out.

    Args:
        recorded: Whether autograd would record the call in PyTorch, whose encoders then compute padding, too; None
            where the trace has the gradients of the call.
    """
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(torch.jit, "is_tracing", _is_tracing))
        for layers, hint in _HINTS:
            if hint in _signature_of(layers.forward).parameters:  # PyTorch 2.0's decoder does not look
                stack.enter_context(mock.patch.object(layers, "forward", _with_hint(layers.forward, hint)))
        encoder = nn.TransformerEncoder
        stack.enter_context(mock.patch.object(encoder, "forward", _without_nested_tensors(encoder.forward, recorded)))
        yield


def _without_nested_tensors(forward: Callable[..., Any], recorded: Optional[bool]) -> Callable[..., Any]:
    """Return the forward of an encoder that computes padding, and has zeros there where PyTorch has them."""

    @functools.wraps(forward)
    def padded(encoder: nn.TransformerEncoder, *args: Any, **kwargs: Any) -> Any:
        asked: List[torch.Tensor] = []

        def left_aligned(src: torch.Tensor, keep: torch.Tensor) -> bool:
            asked.append(keep)
            return False

        with mock.patch.object(torch, NESTED_FROM_MASK[-1], left_aligned):
            output: torch.Tensor = forward(encoder, *args, **kwargs)
        given = inspect.signature(forward).bind(encoder, *args, **kwargs).arguments
        first = encoder.layers[0]
        # PyTorch 2.0 looks at the mask before it looks at the number of heads.
        if not asked or given.get("mask") is not None or first.self_attn.num_heads % 2:
            return output
        if recorded is None:
            differentiable = torch.is_grad_enabled() and any(map(requires_grad, [given["src"], *first.parameters()]))
        else:
            differentiable = recorded
        if differentiable:
            return output
        keep = asked[0].to(output.dtype)
        starts_again = (keep[:, 1:] - keep[:, :-1]).clamp(min=0).sum()
        outside = torch.zeros_like(output)
        outside = outside if encoder.norm is None else encoder.norm(outside)
        return torch.where((keep + starts_again == 0).unsqueeze(-1), outside, output)

    return padded


def _with_hint(forward: Callable[..., Any], hint: str) -> Callable[..., Any]:
    signature = _signature_of(forward)

    @functools.wraps(forward)
    def told(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        if given.arguments.get(hint) is None:
            given.arguments[hint] = False
        return forward(*given.args, **given.kwargs)

    return told


@contextmanager
def without_generation_cache(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Let the `config.use_cache` of transformers models be false in the `with` block.

    Their cache of past keys and values begins with zero-sized tensors, which PopTorch refuses, and only generation
    reads it. `past_key_values` is then missing in the output.
    """
    with ExitStack() as stack:
        for config in (getattr(module, "config", None) for module in modules):
            if getattr(config, "use_cache", None) is True:
                stack.enter_context(mock.patch.object(config, "use_cache", False))
        yield


@contextmanager
def without_checkpointing(training: bool, writer: Optional[nn.Module] = None) -> Iterator[None]:
    """Let `torch.utils.checkpoint` call its function and nothing else in the `with` block.

    It saves memory by autograd, which takes no part in a trace: it requests PyTorch's module of the device "ipu", and
    detaches. Its inner functions are replaced, for those who imported `checkpoint` by name. In training gradients
    matter, which PyTorch's reentrant variant may not pass on.

    PyTorch calls the function once more for the gradients. With a `writer`, a model, a warning names the buffers that
    this call would write again.
    """
    module: Any = torch.utils.checkpoint
    watched: Callable[[], ContextManager[None]] = functools.partial(_warning_of_writes, writer)

    def called(function: Callable[..., Any], preserve_rng_state: bool = True, *args: Any, **kwargs: Any) -> Any:
        with watched():
            return function(*args, **kwargs)

    def nothing_around(*args: Any, **kwargs: Any) -> Iterator[None]:
        """Yield once, where the checkpointed function is called."""
        with watched():
            yield

    replaced = {CHECKPOINT_CALL: called, **dict.fromkeys(CHECKPOINT_GENERATORS, nothing_around)}
    with mock.patch.object(module.CheckpointFunction, "apply", _called_reentrantly if training else called):
        with ExitStack() as stack:
            for name in filter(functools.partial(hasattr, module), replaced):
                stack.enter_context(mock.patch.object(module, name, replaced[name]))
            yield


@contextmanager
def _warning_of_writes(model: Optional[nn.Module]) -> Iterator[None]:
    """Warn of the buffers of a model that code in the `with` block writes, while the model is in training mode."""
    if model is None or not model.training:
        yield
        return
    before = {name: plain(buffer).clone() for name, buffer in model.named_buffers()}
    yield
    written = [
        name
        for name, buffer in model.named_buffers()
        if name in before and not torch.equal(plain(buffer), before[name])
    ]
    if written and model not in _WARNED:
        _WARNED.add(model)
        logger.warning(
            "torch.utils.checkpoint calls a function that writes %s. PyTorch calls it again for the gradients, and so "
            "writes twice in each step; a device writes once. Call the function without checkpoint to compare both.",
            listed(written),
        )


def _called_reentrantly(function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
    if torch.is_grad_enabled() and not any(isinstance(value, torch.Tensor) and value.requires_grad for value in args):
        raise LossError(
            "torch.utils.checkpoint with use_reentrant=True (the default of some versions of PyTorch) was given no "
            "tensor that requires gradients, so PyTorch computes none for the layers in it. Pass use_reentrant=False."
        )
    return function(*args)
