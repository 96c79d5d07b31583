"""One run of a model on the host, each operator booked on the layer that runs: a profile for the planner."""

from __future__ import annotations

import copy
import os
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from math import prod
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union
from unittest import mock

import torch
from torch import Tensor, nn

from ignite_ipu.errors import PlanError
from ignite_ipu.pipeline.profiling.layers import Granularity, select_layers
from ignite_ipu.pipeline.profiling.profile import Crossing, Layer, Profile, SavedTensor, SharedWeight, TensorSize
from ignite_ipu.program.forward.module_attributes import plain_attributes, tensors_in
from ignite_ipu.program.module_state import modes_kept
from ignite_ipu.program.tensors.raw import plain, requires_grad
from ignite_ipu.torch_names.dispatch import DispatchMode, schema_of, tree_flatten, tree_map
from ignite_ipu.torch_names.fake_tensors import DataDependentOutputException, FakeTensorMode
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass, memory_of

Inputs = Union[Tensor, Sequence[Any], Mapping[str, Any]]
"""One tensor, the positional arguments, or the keyword arguments of a model."""

_HALF = (torch.float16, torch.bfloat16)
# The place of the first of the two operands among the arguments.
_FIRST_OPERAND = {"mm": 0, "bmm": 0, "mv": 0, "dot": 0, "addmm": 1, "baddbmm": 1, "addbmm": 1, "addmv": 1}


def measure(
    model: nn.Module,
    inputs: Inputs,
    *,
    granularity: Granularity = "blocks",
    training: bool = True,
    fake: bool = True,
    call: Optional[Callable[..., Any]] = None,
) -> Profile:
    """Run the model's forward once on the host and return the memory, the work and the outputs of each layer.

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
        # Without any values the slower propagation of shapes is spared.
        only_shapes = fake and all(
            tensor.is_meta for tensor in (*model.parameters(), *model.buffers(), *_tensors((args, kwargs)))
        )
        recorder = _Recorder(model, training)
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
    """Return a copy of a model with other tensors as parameters and buffers.

    A copy of a result that a call has left in an attribute would read it, so zeros are there.
    """
    memo: Dict[int, Any] = {}
    attributes = [value for module in model.modules() for value in plain_attributes(module.__dict__).values()]
    for tensor in (tensor for value in attributes for tensor in tensors_in(value)):
        if type(tensor) not in (Tensor, nn.Parameter):
            memo[id(tensor)] = make(torch.zeros(tensor.shape, dtype=tensor.dtype))
    with DisableTorchFunctionSubclass():
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
    """Prevent torch from fusing operators that an IPU runs one by one, and from hiding matrix products in them."""
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
    """Restore the buffers that the run has changed; a write to another one would count as an edit by the user."""
    current = dict(model.named_buffers())
    with torch.no_grad():
        for name, value in buffers.items():
            if value.is_meta or not torch.equal(current[name], value):
                current[name].copy_(value)


def _size(tensor: Tensor) -> int:
    # The device keeps int64 and float64 as their 32-bit kin.
    return tensor.numel() * min(4, tensor.element_size())


def _tensors(tree: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, Tensor))


def _matmul_flops(operator: str, args: Tuple[Any, ...], result: Any) -> Tuple[float, float, Tuple[Tensor, ...]]:
    """Return forward and backward operations, two to a multiply-add, and the operands multiplied; none for others.

    The backward pass repeats a product once per operand that needs a gradient.
    """
    if operator == "convolution":
        images, weight = operands = args[:2]
        # Weights are (out, in / groups, *kernel), or (in, out / groups, *kernel) when transposed.
        forward = 2.0 * (images if args[6] else result).numel() * prod(weight.shape[1:])
    elif operator in _FIRST_OPERAND:
        left, right = operands = args[_FIRST_OPERAND[operator] :][:2]
        forward = 2.0 * left.numel() * (right.shape[-1] if right.dim() > 1 else 1)
    else:
        return 0.0, 0.0, ()
    return forward, forward * sum(t.requires_grad for t in operands), operands


@dataclass
class _Span:
    """Counts of a `Layer`, from its start to that of the next."""

    module: str = ""
    call: int = 0
    forward_flops: float = 0.0
    backward_flops: float = 0.0
    traffic: float = 0.0
    activation_bytes: int = 0
    half: bool = False
    saved: List[SavedTensor] = field(default_factory=list)


@dataclass
class _Stored:
    """Storage that is no weight: the spans that make it, or first use it, and last use it."""

    size: int
    label: str = "constant"
    producer: Optional[int] = None
    consumer: int = -1
    differentiable: bool = False
    saved: bool = False


class _Recorder(DispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that follows one forward pass; tensors are compared by storage: a view counts as its base."""

    def __init__(self, model: nn.Module, training: bool) -> None:
        super().__init__()
        self.model, self.training = model, training
        # Operators before the first layer run where PopTorch puts operators before the first block: with the first
        # stage.
        self.spans: List[_Span] = [_Span()]
        self.started = False
        self.calls: Dict[str, int] = {}
        self.weights: Dict[int, str] = {}
        self.uses: Dict[str, List[int]] = {}
        self.stored: Dict[int, _Stored] = {}
        self.samples = 1
        self.input_bytes = 0
        # A storage freed during the run could come back at the same address and be taken for the old one.
        self.alive: List[Tensor] = []
        self.know_weights(lambda tensor: tensor)

    def know_weights(self, view: Callable[[Tensor], Tensor]) -> None:
        """Remember the storages behind parameters and buffers, as `view` shows them to operators."""
        for name, tensor in [*self.model.named_parameters(), *self.model.named_buffers()]:
            shown = view(tensor)
            self.alive.append(shown)
            self.weights.setdefault(memory_of(shown), name)

    def know_inputs(self, tree: Any) -> None:
        """Remember the tensors that come from the host; the first one's rows are the samples."""
        for i, tensor in enumerate(_tensors(tree)):
            if i == 0 and tensor.dim() > 0:
                self.samples = tensor.shape[0]
            self._known(tensor).label = f"input {i}"
            self.input_bytes += _size(tensor)

    def starter(self, name: str) -> Callable[[nn.Module, Any], None]:
        """Return a forward pre-hook that begins the layer `name`."""

        def start(module: nn.Module, args: Any) -> None:
            if self.started:
                self.spans.append(_Span())
            self.started = True
            call = self.calls.get(name, 0)
            self.calls[name] = call + 1
            self.spans[-1].module, self.spans[-1].call = name, call

        return start

    def save(self, tensor: Tensor) -> Tensor:
        """Book a tensor that autograd keeps for the backward pass; weights stay in memory anyway."""
        if memory_of(tensor) not in self.weights and not self._known(tensor).saved:
            stored, here = self._known(tensor), len(self.spans) - 1
            stored.saved = True
            producer = here if stored.producer is None else stored.producer
            self.spans[here].saved.append(SavedTensor(stored.label, stored.size, producer))
        return tensor

    def _known(self, tensor: Tensor) -> _Stored:
        key = memory_of(tensor)
        if key not in self.stored:
            self.alive.append(tensor)
            self.stored[key] = _Stored(_size(tensor))
        return self.stored[key]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Optional[Dict[str, Any]] = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        # Questions about a tensor, such as its device, come here as operators too.
        if func.namespace == "prim":
            return result
        operator = schema_of(func).name.split("::")[-1]
        span = self.spans[-1]
        read = list(_tensors((args, kwargs)))
        for tensor in read:
            self._consume(tensor)
        known = {memory_of(tensor) for tensor in read}
        # Over shapes only, a view of a real weight is a view of its converted twin, which is known as a weight.
        fresh = [t for t in _tensors(result) if memory_of(t) not in known and memory_of(t) not in self.weights]
        in_place = operator.endswith("_")
        forward, backward, operands = _matmul_flops(operator, args, result)
        if forward:
            span.forward_flops += forward
            span.backward_flops += backward if self.training else 0.0
            span.half = span.half or operands[0].dtype in _HALF
        elif fresh or in_place:
            span.traffic += sum(map(_size, read)) + sum(map(_size, _tensors(result)))
        for tensor in [] if in_place else fresh:
            if memory_of(tensor) not in self.stored:
                self._produce(tensor, operator, any(t.requires_grad for t in read))
        return result

    def _consume(self, tensor: Tensor) -> None:
        here = len(self.spans) - 1
        weight = self.weights.get(memory_of(tensor))
        if weight is not None:
            uses = self.uses.setdefault(weight, [])
            if here not in uses:
                uses.append(here)
            return
        stored = self._known(tensor)
        stored.producer = here if stored.producer is None else stored.producer
        stored.consumer = here
        stored.differentiable |= tensor.requires_grad

    def _produce(self, tensor: Tensor, operator: str, differentiable: bool) -> None:
        here, stored = len(self.spans) - 1, self._known(tensor)
        stored.producer, stored.label = here, f"{operator} {tuple(tensor.shape)}"
        stored.differentiable = differentiable and tensor.is_floating_point()
        self.spans[here].activation_bytes += stored.size

    def profile(self, output: Any) -> Profile:
        if not self.started:
            raise PlanError(
                f"The forward of {type(self.model).__name__} called none of the chosen layers. Choose another "
                "granularity, or name modules whose forward runs."
            )
        parameters = dict(self.model.named_parameters())
        buffers = dict(self.model.named_buffers())
        held: List[List[str]] = [[] for _ in self.spans]
        for name, uses in self.uses.items():
            held[uses[0]].append(name)
        layers = []
        for span, names in zip(self.spans, held):
            own = {name: parameters[name] for name in names if name in parameters}
            trained = [each for each in own.values() if each.requires_grad]
            layers.append(
                Layer(
                    name=span.module if span.call == 0 else f"{span.module}#{span.call + 1}",
                    parameters=tuple(TensorSize(name, _size(each)) for name, each in own.items()),
                    trainable_bytes=sum(map(_size, trained)),
                    trainable_elements=sum(p.numel() for p in trained),
                    buffer_bytes=sum(_size(buffers[n]) for n in names if n in buffers),
                    **{**vars(span), "saved": tuple(span.saved)},
                )
            )
        crossings = tuple(
            Crossing(each.producer, each.consumer, each.size, self.training and each.differentiable)
            for each in self.stored.values()
            if each.producer is not None and each.consumer > each.producer
        )
        shared = tuple(
            SharedWeight(name, tuple(uses), _size(parameters[name]))
            for name, uses in self.uses.items()
            if len(uses) > 1 and name in parameters
        )
        return Profile(
            model=type(self.model).__name__,
            layers=tuple(layers),
            crossings=crossings,
            shared=shared,
            samples=self.samples,
            input_bytes=self.input_bytes,
            output_bytes=sum(map(_size, _tensors(output))),
            unused=tuple(n for n in parameters if n not in self.uses),
            training=self.training,
        )
