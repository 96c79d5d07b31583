"""The module that PopTorch compiles: the user's model, called with a batch taken apart into tensors."""

from __future__ import annotations

import contextlib
from typing import (
    Any,
    Callable,
    ContextManager,
    Dict,
    Iterator,
    List,
    Mapping,
    Optional,
    Protocol,
    Sequence,
    Tuple,
)
from unittest import mock

import torch
from torch import nn

from ignite_ipu import backend
from ignite_ipu.errors import OutputError, UnsupportedArgumentError, logger
from ignite_ipu.program.forward.assigned_buffers import assignments_written
from ignite_ipu.program.forward.computed_attributes import ComputedAttributes
from ignite_ipu.program.forward.eager import EAGER
from ignite_ipu.program.forward.equivalents import Equivalents
from ignite_ipu.program.forward.gradients import GradientHookGuard, own_backwards_refused
from ignite_ipu.program.forward.half_precision import HalfProducts
from ignite_ipu.program.forward.host_tensors import HostTensorsMovedIn
from ignite_ipu.program.forward.integer_buffers import IntegerBuffers, integer_buffers
from ignite_ipu.program.forward.model_libraries import (
    declared_as_tracing,
    without_checkpointing,
    without_generation_cache,
)
from ignite_ipu.program.forward.module_attributes import ModuleAttributes
from ignite_ipu.program.forward.randomness import draws_put_back
from ignite_ipu.program.forward.shown_buffers import ShownBuffers
from ignite_ipu.program.forward.statistics import StatisticsWritten
from ignite_ipu.program.forward.weight_writes import WeightWriteGuard
from ignite_ipu.program.guards.python_state import PythonState
from ignite_ipu.program.step_layout import StepLayout
from ignite_ipu.program.tensors.raw import named_tensors, plain
from ignite_ipu.program.tensors.trees import leaves_of, map_tensors, opened_record, tensors_in
from ignite_ipu.torch_names.modules import BUFFERS, PARAMETERS, AnyBatchNorm, NormWithStatistics, all_named_modules
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass, version_of

# Buffers of PyTorch's from which nothing is computed.
_COUNTERS = ("num_batches_tracked", "n_averaged")
# Tensors that are no constants; counters of batches, each after the user's own; other buffers by name.
_OnHost = Tuple[List[torch.Tensor], List[Tuple[torch.Tensor, torch.Tensor]], List[Tuple[str, torch.Tensor]]]


def call_model(model: nn.Module, x: Any) -> Any:
    """Call the model with its inputs: the default `model_fn`."""
    return model(x)


def unchanged(output: Any) -> Any:
    """Return the output as it is: the default `model_transform`."""
    return output


class StagesOfModel(Protocol):
    """Stages of a model, whose layers are put on their IPUs while it is traced."""

    def check_ran(self) -> None:
        """Refuse a forward in which the model itself was not called."""

    def begin_loss(self) -> None:
        """Open the loss's block, between the model's forward and the loss."""


class BatchStep(nn.Module):
    """A module called with a batch's leaves, which calls the user's model with the batch.

    The user's model stays the child `model`, so that its parameters are named `model.<name>` in the compiled program.

    Attributes:
        is_tried: True if the model is known to change nothing in every call.
        is_recorded: Whether autograd would record an evaluation in PyTorch; False where gradients are off.
        returns_writes: Whether the buffers that forward writes come back with the outputs, as in inference.
        computed: The attributes that forward computes from weights alone; searched where `keeps_attributes`.
        layout: The layout of the batches that the step is compiled for.
        maximizes: Whether the negated loss is minimised.
        shown: Buffers whose values code may read while it is traced.
        integers: The buffers of integers and booleans that forward writes.
    """

    is_tried = False
    leaves_behind = False
    returns_writes = True
    keeps_attributes = True
    is_recorded = False

    def __init__(
        self,
        model: nn.Module,
        names: Sequence[str],
        model_fn: Callable[[nn.Module, Any], Any],
        model_transform: Callable[[Any], Any],
        half: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(model, nn.Module):
            raise TypeError(f"The model is a {type(model).__qualname__}; a torch.nn.Module is needed.")
        self.model = model
        self.model_fn = model_fn
        self.model_transform = model_transform
        self.half_products = half
        self._unwrapped = type(self)
        self.layout = StepLayout(names)
        self.maximizes = False
        self._stages: List[StagesOfModel] = []
        self.computed = ComputedAttributes()
        # Empty until they are known; a list, because PopTorch traces a shallow copy of this module.
        self._writes: List[List[str]] = []
        self.shown = ShownBuffers()
        self.integers = IntegerBuffers()

    def train(self, mode: bool = True) -> BatchStep:
        """Set the mode of the model's modules; modules beside it, such as a loss, keep their own."""
        self.training = mode
        self.model.train(mode)
        return self

    def set_direction(self, maximizes: bool) -> None:
        """Have the loss maximised, for use before a compilation."""
        self.maximizes = maximizes

    def marked_loss(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the value that the device minimises, marked as PopTorch's loss."""
        return backend.poptorch().identity_loss(-loss if self.maximizes else loss, reduction="none")

    def arguments(self, *parts: Any, micro_batches: int) -> List[Any]:
        """Return the arguments of the compiled step for one batch: `x, y` for training, `x` for evaluation.

        The first batch decides the layout the step is compiled for; later ones must have the same.

        Raises:
            BatchError: The batch does not divide into micro-batches, or differs from the first one.
        """
        layout, leaves = self.layout.flattened(parts, micro_batches)
        self.layout.settle(layout)
        return leaves

    def computes_like(self, other: BatchStep) -> bool:
        """Return whether another step compiles to the same program."""
        mine = (type(self), self.model, self.model_fn, self.model_transform, self.half_products)
        return mine == (type(other), other.model, other.model_fn, other.model_transform, other.half_products)

    def again(self) -> BatchStep:
        """Return a step that computes the same, for batches of a layout of its own."""
        raise NotImplementedError

    def python_state(self) -> PythonState:
        """Return the Python values that are constants of the compiled step."""
        return PythonState(self.model, self.model_fn, self.model_transform)

    @contextlib.contextmanager
    def staged(self, stages: StagesOfModel) -> Iterator[None]:
        """Let stages open their blocks in the model and before the loss, which is traced in the `with` block."""
        self._stages.append(stages)
        try:
            yield
        finally:
            self._stages.clear()

    @contextlib.contextmanager
    def guarded(self, training: bool = False) -> Iterator[bool]:
        """Refuse operations that no IPU computes, while the model is traced; yields whether it is traced."""
        traced: bool = backend.poptorch().isRunningOnIpu()
        if traced:
            with contextlib.ExitStack() as stack:
                stack.enter_context(EAGER)
                _refuse_counting(self.model)
                stack.enter_context(self.integers.on_device(self))
                if training:
                    stack.enter_context(own_backwards_refused())
                    stack.enter_context(GradientHookGuard())
                else:
                    stack.enter_context(StatisticsWritten())
                # The loss, and other operations after the model, belong to the last block of a model annotated by hand.
                stack.enter_context(mock.patch.object(backend.poptorch().Block, "__exit__", _stay_open))
                constants = self.shown.constants(self)
                declared = declared_as_tracing(None if training else self.is_recorded)
                with HostTensorsMovedIn(), Equivalents(), constants, declared:
                    with without_checkpointing(training), without_generation_cache(self.model):
                        yield True
                if constants.refusal is not None:
                    raise constants.refusal  # PyTorch has the value, and runs no handler of the error
        else:
            # On the host PyTorch computes every loss.
            yield False

    def loss_of(self, output: Any) -> torch.Tensor:
        """Return the loss in the result of a call of this, if it trains."""
        raise NotImplementedError

    def run_with(self, model: nn.Module, *leaves: Any) -> Any:
        """Return the result of a micro-batch with another model in the place of the user's, without marks."""
        x, *_ = self.layout.batch(leaves)
        return self.model_transform(self.model_fn(model, x))

    @property
    def writes(self) -> Sequence[str]:
        """Names of the model's buffers that come back with the outputs, because forward writes into them."""
        return self._writes[0] if self._writes else ()

    def find_writes(self, leaves: Sequence[Any], micro_batches: int) -> Sequence[str]:
        """Return `writes`, found by a call on the host before the first compilation, for a batch's leaves.

        Where the host cannot call the model, all its floating-point buffers count that forward may write into.
        """
        if not self._writes:
            floats = _writable_buffers(self.model) if self.returns_writes else []
            integers = integer_buffers(self.model) if self.returns_writes else []
            written = self._written_on_host(self.model, [*floats, *integers], leaves, micro_batches)
            self._writes.append(floats if written is None else written)
        return self.writes

    def written_integers(self, leaves: Sequence[Any], micro_batches: int) -> List[str]:
        """Return the names of the buffers of integers that forward writes, by a call on the host for a batch's leaves.

        A buffer that it writes is a constant of the program, with PopTorch's warning, if the host cannot call it.
        """
        names = integer_buffers(self)
        if self.returns_writes:
            written = {f"model.{name}" for name in self.find_writes(leaves, micro_batches)}
            return [name for name in names if name in written]
        return self._written_on_host(self, names, leaves, micro_batches) or []

    def _written_on_host(
        self, module: nn.Module, names: Sequence[str], leaves: Sequence[Any], micro_batches: int
    ) -> Optional[List[str]]:
        """Return those of some buffers of a module that a call on the host writes; None if it fails."""
        if not names:
            return []
        inputs, kept = first_micro_batch(leaves, micro_batches), ModuleAttributes(self)
        try:
            with draws_put_back(), self.on_host():
                named = named_tensors(module, BUFFERS)
                before = {name: (named[name], named[name].clone(), version_of(named[name])) for name in names}
                with WeightWriteGuard(self.model):
                    self.forward(*inputs)
        except Exception as error:
            logger.info("%s cannot be called on the host: %s", type(self.model).__qualname__, error)
            return None
        finally:
            kept.put_back(always=True)
        running = statistics_in_training(self.model) if module is self.model else ()
        return [
            name
            for name, (now, then, version) in before.items()
            if name in running or version_of(now) != version or not torch.equal(now, then)
        ]

    def with_writes(self, output: Any) -> Any:
        """Return an output, and the buffers that forward has written, each with one row per micro-batch."""
        if not self.writes:
            return output
        buffers = dict(self.model.named_buffers(remove_duplicate=False))
        return (output, *[buffers[name].reshape(1, *buffers[name].shape) for name in self.writes])

    def tracks_statistics(self) -> bool:
        """Return whether replicas are to have the statistics of their normalisations for themselves, as in PyTorch."""
        return False

    @contextlib.contextmanager
    def on_host(self) -> Iterator[_OnHost]:
        """Let this be called on the host in the `with` block, with ordinary tensors as weights; gives these."""
        found: Dict[int, torch.Tensor] = {}
        # Reading forward of a wrapped one downloads.
        wrapped, self.__class__ = type(self), self._unwrapped
        before, variable, counters, buffers = [], [], [], []
        # A copy that is made in inference mode counts no writes.
        with torch.inference_mode(False), torch.no_grad():
            modules = all_named_modules(self)
            for kind in (PARAMETERS, BUFFERS):
                tables = [(path, module.__dict__[kind]) for path, module in modules]
                for path, tensors in tables:
                    if not tensors:
                        continue
                    before.append((tensors, dict(tensors)))
                    # Pruning and parametrizations register the same tensors in another order.
                    for name, tensor in sorted(tensors.items()):
                        if tensor is None or id(tensor) in found:
                            continue
                        # Buffers may be written into. The newest values of weights are not needed.
                        now = found[id(tensor)] = plain(tensor).clone() if kind == BUFFERS else plain(tensor)
                        is_kept = now.is_floating_point() or tensor in self.integers
                        if is_kept or name in _COUNTERS:
                            variable.append(now)
                        if kind == BUFFERS and (is_kept or name not in _COUNTERS):
                            buffers.append((f"{path}.{name}", now))
                        elif name == _COUNTERS[0]:
                            counters.append((tensor, now))
                    tensors.update({name: found[id(tensor)] for name, tensor in tensors.items() if tensor is not None})
        try:
            # Without gradients PyTorch's checkpoints warn that there are none.
            with EAGER, without_checkpointing(False, self.model), without_generation_cache(self.model):
                with torch.inference_mode(False), torch.no_grad():
                    with torch.autocast("cpu", enabled=False), DisableTorchFunctionSubclass():
                        yield variable, counters, buffers
        finally:
            for tensors, values in before:
                tensors.update(values)
            object.__setattr__(self, "__class__", wrapped)

    def adds_up(self, leaves: Sequence[Any], micro_batches: int) -> bool:
        """Return whether this trains by a loss that is a sum over samples; by a call on the host."""
        return False

    def in_half(self) -> ContextManager[Any]:
        """Return a context for operations in half precision on an IPU, if there are any."""
        halves = self.half_products and backend.poptorch().isRunningOnIpu()
        return HalfProducts() if halves else contextlib.nullcontext()

    def call_model(self, x: Any) -> Any:
        """Return the model's transformed output for the inputs `x`, mappings that PopTorch does not know as dicts."""
        with self.in_half():
            with assignments_written(self.model):
                output = self.model_fn(self.model, x)
            for stages in self._stages:
                stages.check_ran()
            output = self.model_transform(output)
        return map_tensors(output, lambda tensor: tensor)


def statistics_in_training(model: nn.Module) -> List[str]:
    """Return the names of the batch statistics that normalisations in training mode write."""
    return [
        f"{path}.{name}" if path else name
        for path, module in all_named_modules(model)
        if isinstance(module, NormWithStatistics) and module.training
        for name in ("running_mean", "running_var")
        if getattr(module, name) is not None
    ]


def _writable_buffers(model: nn.Module) -> List[str]:
    """Return the names of floating-point buffers, but for the statistics of normalisations in evaluation mode."""
    norms = {
        path
        for path, module in all_named_modules(model)
        if isinstance(module, NormWithStatistics) and not module.training
    }
    return [
        name
        for name, buffer in named_tensors(model, BUFFERS).items()
        if plain(buffer).is_floating_point() and name.rpartition(".")[0] not in norms
    ]


def _refuse_counting(model: nn.Module) -> None:
    for path, module in all_named_modules(model):
        counts = isinstance(module, AnyBatchNorm) and module.momentum is None and module.running_mean is not None
        if counts and module.training:
            raise UnsupportedArgumentError(
                f"{path or 'The model'} is a {type(module).__qualname__} with momentum=None: its statistics are "
                "averages over all batches that it has seen, whose number no compiled program reads. Give it a "
                "momentum, a number, such as PyTorch's 0.1."
            )


def _stay_open(block: Any, *error: Any) -> None:
    """Leave a `poptorch.Block` open until the next one begins, as `poptorch.BeginBlock` does."""


def first_micro_batch(leaves: Sequence[Any], micro_batches: int) -> List[Any]:
    """Return copies of the part of a call's arguments that its first micro-batch takes."""
    return [leaf[: len(leaf) // micro_batches].clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]


def check_output(output: Any) -> None:
    """Refuse an output that would come back without its tensors, or that has none."""
    for leaf in leaves_of(output, records=False):
        if not isinstance(leaf, torch.Tensor) and opened_record(leaf) is not None:
            raise OutputError(
                f"The model's output contains a {type(leaf).__qualname__}, whose tensors PopTorch does not find. Take "
                "them out with model_transform, for example model_transform=lambda output: output.logits."
            )
    if not tensors_in(output):
        raise OutputError(
            f"The model's output is {describe_value(output)}, in which there is no tensor, so nothing can come back "
            "from the device. Return a tensor or a tuple, list or dict of tensors (model_transform can convert it)."
        )


def describe_value(value: Any) -> str:
    """Return the description of a value in messages."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)} items ({', '.join(describe_value(item) for item in value)})"
    if isinstance(value, Mapping):
        return f"a {type(value).__name__} with the keys {list(value)}"
    return f"a {type(value).__name__}" if value is not None else "None"
