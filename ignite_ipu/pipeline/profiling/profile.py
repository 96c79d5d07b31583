"""A model for the planner: a chain of layers with the memory, the work and the outputs of each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Tuple

from ignite_ipu.errors import PlanError


@dataclass(frozen=True)
class TensorSize:
    """One tensor's name and size in bytes."""

    name: str
    bytes: int


@dataclass(frozen=True)
class SavedTensor(TensorSize):
    """A tensor kept for the backward pass, with the index of the layer that made it."""

    producer: int = 0


@dataclass(frozen=True)
class Layer:
    """Layer of the chain, with its memory and work for one micro-batch.

    A layer is everything from the start of its module's forward to the start of the next layer's, the span that a
    PopTorch block opened there covers.

    Args:
        name: Qualified module name; the n-th call of a module called several times ends in `#n`.
        module: Qualified module name.
        call: Which call of the module this is, from 0.
        parameters: Parameters this layer is the first to use, with their bytes.
        trainable_bytes: Bytes of those among `parameters` that require gradients.
        trainable_elements: Number of their elements.
        buffer_bytes: Bytes of the module buffers this layer is the first to use.
        forward_flops: Operations of matrix products and convolutions, two per multiply-add.
        backward_flops: Same, for the gradients that autograd asks for.
        traffic: Bytes that all other operators read and write in the forward pass.
        activation_bytes: Bytes of the tensors its forward pass creates.
        saved: Tensors it is the first to keep for the backward pass.
        half: Whether its matrix arithmetic is in 16 bits.
    """

    name: str
    module: str
    call: int
    parameters: Tuple[TensorSize, ...] = ()
    trainable_bytes: int = 0
    trainable_elements: int = 0
    buffer_bytes: int = 0
    forward_flops: float = 0.0
    backward_flops: float = 0.0
    traffic: float = 0.0
    activation_bytes: int = 0
    saved: Tuple[SavedTensor, ...] = ()
    half: bool = False

    @property
    def parameter_bytes(self) -> int:
        return sum(p.bytes for p in self.parameters)

    @property
    def saved_bytes(self) -> int:
        return sum(t.bytes for t in self.saved)


@dataclass(frozen=True)
class Crossing:
    """A tensor made in one layer and last used in a later one: it moves over every cut between the two.

    Args:
        producer: Index of the layer that makes it, or that first uses it if it comes from the host.
        consumer: Index of the last layer that uses it.
        bytes: Its size for one micro-batch.
        differentiable: Whether a gradient of the same size comes back over the same cuts.
    """

    producer: int
    consumer: int
    bytes: int
    differentiable: bool = True

    @property
    def skips(self) -> bool:
        """True where it passes over at least one layer that does not make it."""
        return self.consumer - self.producer > 1


@dataclass(frozen=True)
class SharedWeight:
    """A parameter that several layers use, by index; they must sit on one IPU."""

    name: str
    layers: Tuple[int, ...]
    bytes: int


@dataclass(frozen=True)
class Profile:
    """A model measured for planning: layers in the order in which they run, and the tensors between them.

    Args:
        model: Class name of the model.
        crossings: Tensors that flow from one layer to a later one.
        shared: Parameters used by more than one layer.
        samples: Rows of the micro-batch that was measured.
        input_bytes: Bytes the host sends for one micro-batch.
        output_bytes: Bytes the model returns for one micro-batch.
        unused: Names of parameters that the forward pass never touched.
        training: Whether tensors kept for a backward pass were measured.
    """

    model: str
    layers: Tuple[Layer, ...]
    crossings: Tuple[Crossing, ...] = ()
    shared: Tuple[SharedWeight, ...] = ()
    samples: int = 1
    input_bytes: int = 0
    output_bytes: int = 0
    unused: Tuple[str, ...] = ()
    training: bool = True

    def __post_init__(self) -> None:
        count = len(self.layers)
        if not count:
            raise PlanError(f"{self.model} has no layers to plan: its forward pass ran no module.")
        if len(set(self.names)) != count:
            raise PlanError(f"Two layers of {self.model} have the same name.")
        if not all(crossing.producer < crossing.consumer < count for crossing in self.crossings):
            raise PlanError("A tensor goes to a layer before the one that makes it, or to none.")
        known = [saved.producer for layer in self.layers for saved in layer.saved]
        if max([*known, *(number for weight in self.shared for number in weight.layers)], default=0) >= count:
            raise PlanError(f"A saved tensor or a shared weight is of layer {count} or later, and there is none.")

    def __hash__(self) -> int:
        return hash((self.model, len(self.layers), self.input_bytes))  # to hash all tensors takes long

    @property
    def names(self) -> Tuple[str, ...]:
        return tuple(layer.name for layer in self.layers)

    @property
    def parameter_bytes(self) -> int:
        return sum(layer.parameter_bytes for layer in self.layers)

    @property
    def trainable_elements(self) -> int:
        return sum(layer.trainable_elements for layer in self.layers)

    @property
    def forward_flops(self) -> float:
        return sum(layer.forward_flops for layer in self.layers)

    @property
    def backward_flops(self) -> float:
        return sum(layer.backward_flops for layer in self.layers)

    @property
    def cut_bytes(self) -> Tuple[int, ...]:
        """Bytes one micro-batch moves forward over each of the `len(layers) - 1` cuts, skips included."""
        return self._totals(self.crossings)

    @property
    def gradient_cut_bytes(self) -> Tuple[int, ...]:
        """Bytes of gradients that one micro-batch moves back over each cut."""
        return self._totals(tuple(c for c in self.crossings if c.differentiable))

    @property
    def skip_bytes(self) -> Tuple[int, ...]:
        """The part of `cut_bytes` that the layer just before the cut did not make."""
        later = tuple(replace(c, producer=c.producer + 1) for c in self.crossings if c.skips)
        return self._totals(later)

    def _totals(self, crossings: Tuple[Crossing, ...]) -> Tuple[int, ...]:
        change = [0] * len(self.layers)
        for crossing in crossings:
            change[crossing.producer] += crossing.bytes
            change[crossing.consumer] -= crossing.bytes
        return tuple(accumulate(change[:-1]))

    def index(self, name: str) -> int:
        """Return a layer's place in the chain.

        Raises:
            PlanError: No layer has that name.
        """
        if name not in self.names:
            raise PlanError(f"No layer is named {name!r}. The layers of {self.model} are: {', '.join(self.names)}.")
        return self.names.index(name)
