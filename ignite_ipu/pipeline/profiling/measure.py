"""One captured run of a model on the host, turned into a profile for the planner."""

from __future__ import annotations

import copy
import os
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Sequence, Tuple, Union
from unittest import mock

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._pytree import tree_flatten, tree_map

from ignite_ipu.errors import PlanError
from ignite_ipu.pipeline.profiling.layers import Granularity, select_layers
from ignite_ipu.pipeline.profiling.profile import Profile
from ignite_ipu.pipeline.profiling.recorder import Recorder
from ignite_ipu.program.module_state import modes_kept
from ignite_ipu.program.tensors.raw import plain, requires_grad

Inputs = Union[Tensor, Sequence[Any], Mapping[str, Any]]
"""One tensor, the positional arguments, or the keyword arguments of a model."""


def measure(
    model: nn.Module,
    inputs: Inputs,
    *,
    granularity: Granularity = "blocks",
    training: bool = True,
    fake: bool = True,
    call: Optional[Callable[..., Any]] = None,
) -> Profile:
    """Run the model's forward once on the host and return what each layer holds, computes and hands on.

    Nothing of the model changes: neither weights, buffers, training flags nor random state.

    Args:
        model: Any module, with its loss if that is part of its forward.
        inputs: One micro-batch: a tensor, a sequence of positional arguments, or a mapping of keyword arguments.
        granularity: Which modules are layers, as for `select_layers`.
        training: Measure in training mode, with the tensors that autograd keeps.
        fake: Propagate shapes only, which takes no memory and little time, least for a model on the meta device. A
            forward that branches on values needs False.
        call: Called with the model and the inputs, runs the model: for a loss, or inputs that have to be prepared.

    Raises:
        PlanError: A model whose forward runs none of the chosen layers, or that needs values while `fake` is True.
    """
    names = select_layers(model, granularity)
    run = call or (lambda model, *args, **kwargs: model(*args, **kwargs))
    if fake:
        # The quickest way, which most models can go. Others cannot be copied, mix in tensors of their own, or do not
        # know the meta device, and may raise anything then. A mistake of theirs is raised again below.
        with suppress(Exception):
            shapes = tree_map(lambda x: x.to("meta") if isinstance(x, Tensor) else x, _arguments(inputs))
            twin = _twin(model, lambda x: torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta"))
            return _recorded(twin, names, shapes, training, fake, run)
    return _recorded(_ordinary(model), names, _arguments(inputs), training, fake, run)


def _recorded(
    model: nn.Module,
    names: Sequence[str],
    arguments: Tuple[Tuple[Any, ...], Dict[str, Any]],
    training: bool,
    fake: bool,
    call: Callable[..., Any],
) -> Profile:
    """Run the model, and leave it as it was."""
    args, kwargs = arguments
    # Counters such as batch norm's advance even when only shapes are propagated.
    kept = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
    with ExitStack() as stack:
        stack.enter_context(modes_kept(model))
        stack.callback(_restore, model, kept)
        # Entering a fake tensor mode makes torch name its compiler's cache directory in the environment.
        stack.enter_context(mock.patch.dict(os.environ))
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(_plain_operators())
        model.train(training)
        given = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
        # Without any values the slower propagation of shapes is spared.
        only_shapes = fake and all(tensor.is_meta for tensor in (*model.parameters(), *model.buffers(), *given))
        recorder = Recorder(model, training)
        if only_shapes:
            stack.enter_context(torch.device("meta"))
        elif fake:
            mode = stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
            args, kwargs = tree_map(lambda x: mode.from_tensor(x) if isinstance(x, Tensor) else x, (args, kwargs))
            recorder.know_weights(mode.from_tensor)
        recorder.know_inputs((args, kwargs))
        for name in names:
            hook = model.get_submodule(name).register_forward_pre_hook(recorder.starter(name or type(model).__name__))
            stack.callback(hook.remove)
        stack.enter_context(recorder)
        if training:
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(recorder.save, lambda tensor: tensor))
        try:
            output = call(model, *args, **kwargs)
        except DataDependentOutputException as error:
            raise PlanError(
                f"The forward of {type(model).__name__} needs the value of a tensor ({error.func}), which shapes alone "
                "do not give. Pass fake=False to measure a real run. A compiled IPU program cannot branch on it either."
            ) from error
    return recorder.profile(output)


def _ordinary(model: nn.Module) -> nn.Module:
    """Return the model itself, or, if PopTorch has wrapped its tensors, a copy over the same memory that it has not.

    No newer values are fetched from a device.
    """
    tensors = (*model.parameters(), *model.buffers())
    wrapped = any(type(tensor) not in (Tensor, nn.Parameter) for tensor in tensors)
    return _twin(model, lambda tensor: tensor) if wrapped else model


def _twin(model: nn.Module, make: Callable[[Tensor], Tensor]) -> nn.Module:
    """Return a copy of a model with other tensors as parameters and buffers."""
    memo: Dict[int, Any] = {}
    with torch._C.DisableTorchFunctionSubclass():
        for tensor in (*model.parameters(), *model.buffers()):
            twin = make(plain(tensor))
            memo[id(tensor)] = nn.Parameter(twin, requires_grad(tensor)) if isinstance(tensor, nn.Parameter) else twin
    return copy.deepcopy(model, memo)


def _arguments(inputs: Inputs) -> Tuple[Tuple[Any, ...], Dict[str, Any]]:
    if isinstance(inputs, Tensor):
        return (inputs,), {}
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return tuple(inputs), {}


@contextmanager
def _plain_operators() -> Iterator[None]:
    """Keep torch from fusing what an IPU runs operator by operator, and from hiding matrix products in it."""
    attention = torch.backends.cuda
    flash = attention.flash_sdp_enabled()  # type: ignore[no-untyped-call]
    efficient = attention.mem_efficient_sdp_enabled()  # type: ignore[no-untyped-call]
    mkldnn = torch.backends.mkldnn.enabled
    # oneDNN has recurrent kernels of its own; the switches for attention are named after CUDA but rule the CPU, too.
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    attention.enable_flash_sdp(False)
    attention.enable_mem_efficient_sdp(False)
    # Since PyTorch 2.5 attention in half precision is computed in float32, unless this is switched on.
    allowed = getattr(attention, "fp16_bf16_reduction_math_sdp_allowed", bool)()
    allow = getattr(attention, "allow_fp16_bf16_reduction_math_sdp", bool)
    allow(True)
    try:
        # Without gradients, encoder layers become a single operator.
        with torch.enable_grad():
            yield
    finally:
        torch.backends.mkldnn.enabled = mkldnn
        attention.enable_flash_sdp(flash)
        attention.enable_mem_efficient_sdp(efficient)
        allow(allowed)


def _restore(model: nn.Module, buffers: Dict[str, Tensor]) -> None:
    current = dict(model.named_buffers())
    with torch.no_grad():
        for name, value in buffers.items():
            current[name].copy_(value)
