"""One captured run of a model on the host, turned into a profile for the planner."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Dict, Mapping, Sequence, Tuple, Union

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._pytree import tree_map

from .errors import PlanError
from .layers import Granularity, select_layers
from .profile import Profile
from .recorder import Recorder

Inputs = Union[Tensor, Sequence[Any], Mapping[str, Any]]
"""One tensor, the positional arguments, or the keyword arguments of a model."""


def measure(
    model: nn.Module,
    inputs: Inputs,
    *,
    granularity: Granularity = "blocks",
    training: bool = True,
    fake: bool = True,
) -> Profile:
    """Run the model's forward once on the host and return what each layer holds, computes and hands on.

    Nothing of the model changes: neither weights, buffers, training flags nor random state.

    Args:
        model: Any module, with its loss if that is part of its forward.
        inputs: One micro-batch: a tensor, a sequence of positional arguments, or a mapping of keyword arguments.
        granularity: Which modules are layers, as for `select_layers`.
        training: Measure in training mode, with the tensors that autograd keeps.
        fake: Propagate shapes only, which takes neither time nor memory. A forward that branches on values needs False.

    Raises:
        PlanError: A model whose forward runs none of the chosen layers, or that needs values while `fake` is True.
    """
    args, kwargs = _arguments(inputs)
    names = select_layers(model, granularity)
    flags = {module: module.training for module in model.modules()}
    kept = {} if fake else {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
    with ExitStack() as stack:
        stack.callback(_restore, model, flags, kept)
        stack.enter_context(torch.random.fork_rng(devices=[]))
        # The oneDNN recurrent kernels hide their matrix products; the portable ones show them.
        stack.callback(setattr, torch.backends.mkldnn, "enabled", torch.backends.mkldnn.enabled)
        torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
        # Grad mode stays on for inference too: without it, fused encoder kernels hide the operators.
        stack.enter_context(torch.enable_grad())
        model.train(training)
        recorder = Recorder(model)
        if fake:
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
            output = model(*args, **kwargs)
        except DataDependentOutputException as error:
            raise PlanError(
                f"The forward of {type(model).__name__} needs the value of a tensor ({error.func}), which shapes alone "
                "do not "
                "give. Pass fake=False to measure a real run. A compiled IPU program cannot branch on it either."
            ) from error
    return recorder.profile(output, training)


def _arguments(inputs: Inputs) -> Tuple[Tuple[Any, ...], Dict[str, Any]]:
    if isinstance(inputs, Tensor):
        return (inputs,), {}
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return tuple(inputs), {}


def _restore(model: nn.Module, flags: Dict[nn.Module, bool], buffers: Dict[str, Tensor]) -> None:
    for module, flag in flags.items():
        module.training = flag
    current = dict(model.named_buffers())
    with torch.no_grad():
        for name, value in buffers.items():
            current[name].copy_(value)
