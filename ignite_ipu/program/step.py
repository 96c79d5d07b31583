"""The module that PopTorch compiles: the user's model, called with a batch taken apart into tensors."""

from __future__ import annotations

import contextlib
from typing import (
    Any,
    Callable,
    Iterator,
    List,
    Sequence,
    Tuple,
)

import torch
from torch import nn

from ignite_ipu import backend
from ignite_ipu.program.forward.assigned_buffers import assignments_written
from ignite_ipu.program.forward.computed_attributes import ComputedAttributes
from ignite_ipu.program.forward.half_precision import in_half
from ignite_ipu.program.forward.integer_buffers import IntegerBuffers
from ignite_ipu.program.forward.shown_buffers import ShownBuffers
from ignite_ipu.program.guards.python_state import PythonState
from ignite_ipu.program.host_weights import HostWeights
from ignite_ipu.program.step_layout import StepLayout
from ignite_ipu.program.written_buffers import WrittenBuffers


def call_model(model: nn.Module, x: Any) -> Any:
    """Call the model with its inputs: the default `model_fn`."""
    return model(x)


def unchanged(output: Any) -> Any:
    """Return the output as it is: the default `model_transform`."""
    return output


class BatchStep(nn.Module):
    """A module called with a batch's leaves, which calls the user's model with the batch.

    The user's model stays the child `model`, so that its parameters are named `model.<name>` in the compiled program.

    Attributes:
        is_tried: True if the model is known to change nothing in every call.
        is_recorded: Whether autograd would record an evaluation in PyTorch; False where gradients are off.
        computed: The attributes that forward computes from weights alone.
        host_weights: Ordinary tensors for a call on the host.
        written: The buffers that forward writes.
        layout: The layout of the batches that the step is compiled for.
        maximizes: Whether the negated loss is minimised.
        shown: Buffers whose values code may read while it is traced.
        integers: The buffers of integers and booleans that forward writes.
        stages: Stages that open their blocks in the model, and before the loss, as forward runs; see `opened`.
    """

    is_tried = False
    leaves_behind = False
    is_recorded = False

    def __init__(
        self,
        model: nn.Module,
        names: Sequence[str],
        model_fn: Callable[[nn.Module, Any], Any],
        model_transform: Callable[[Any], Any],
        half: bool = False,
        returns_writes: bool = True,
    ) -> None:
        super().__init__()
        if not isinstance(model, nn.Module):
            raise TypeError(f"The model is a {type(model).__qualname__}; a torch.nn.Module is needed.")
        self.model = model
        self.model_fn = model_fn
        self.model_transform = model_transform
        self.half_products = half
        self.layout = StepLayout(names)
        self.maximizes = False
        # A list, because PopTorch traces a shallow copy of this module.
        self.stages: List[Any] = []
        self.computed = ComputedAttributes()
        self.shown = ShownBuffers()
        self.integers = IntegerBuffers()
        self.host_weights = HostWeights(type(self), model, self.integers)
        self.written = WrittenBuffers(model, self.host_weights, returns_writes)

    def train(self, mode: bool = True) -> BatchStep:
        """Set the mode of the model's modules; modules beside it, such as a loss, keep their own."""
        self.training = mode
        self.model.train(mode)
        return self

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

    @property
    def beside(self) -> Tuple[Any, ...]:
        """The functions that a call runs beside the model."""
        return self.model_fn, self.model_transform

    def python_state(self) -> PythonState:
        """Return the Python values that are constants of the compiled step, those of a loss included."""
        return PythonState(self.model, *self.beside)

    def loss_of(self, output: Any) -> torch.Tensor:
        """Return the loss in the result of a call of this, if it trains."""
        raise NotImplementedError

    def run_with(self, model: nn.Module, *leaves: Any) -> Any:
        """Return the result of a micro-batch with another model in the place of the user's, without marks."""
        x, *_ = self.layout.batch(leaves)
        return self.model_transform(self.model_fn(model, x))

    def tracks_statistics(self) -> bool:
        """Return whether replicas are to have the statistics of their normalisations for themselves, as in PyTorch."""
        return False

    def adds_up(self, leaves: Sequence[Any], micro_batches: int) -> bool:
        """Return whether this trains by a loss that is a sum over samples; by a call on the host."""
        return False

    def call_model(self, x: Any) -> Any:
        """Return the model's transformed output for the inputs `x`."""
        with in_half(self.half_products):
            with assignments_written(self.model):
                output = self.model_fn(self.model, x)
            for stages in self.stages:
                stages.check_ran()
            return self.model_transform(output)


@contextlib.contextmanager
def opened(stages: List[Any], added: Any) -> Iterator[None]:
    """Have stages among the `stages` of a step, which runs in the `with` block."""
    stages.append(added)
    try:
        yield
    finally:
        stages.clear()
