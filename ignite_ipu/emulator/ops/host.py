"""Running a layer on the host from inside a traced model."""

from __future__ import annotations

from typing import Any, Callable, List, Tuple

import torch
from torch import nn

from ignite_ipu.emulator.errors import backend_error
from ignite_ipu.emulator.logs import logger
from ignite_ipu.emulator.trace.active import active, running
from ignite_ipu.emulator.values.nested import listed


class CPU:
    """A callable that runs on the host, with the values of the execution, whenever the model runs; inference only.

    Values are exchanged in float32. The trace calls the layer once, on zeros, to learn the shapes of its results.
    Outside a traced model it is called directly.

    Args:
        layer_to_call: A module, whose parameters are frozen here, or another callable. It takes and returns tensors.
        ID: Tells the operator from all others in a model.

    Attributes:
        in_shapes, out_shapes: Shapes of what the layer takes and returns, known after a trace.
        inputs, outputs: What it took and returned last.
    """

    def __init__(self, layer_to_call: Callable[..., Any], ID: str) -> None:
        self.layer_to_call = layer_to_call
        self.ID = ID
        self.in_shapes: List[Tuple[int, ...]] = []
        self.out_shapes: List[Tuple[int, ...]] = []
        self.inputs: List[torch.Tensor] = []
        self.outputs: List[torch.Tensor] = []
        if isinstance(layer_to_call, nn.Module):
            for parameter in layer_to_call.parameters():
                parameter.requires_grad_(False)

    def execute(self) -> None:
        """Call the layer on `inputs` and put what it returns into `outputs`."""
        result = self.layer_to_call(*self.inputs)
        for buffer, value in zip(self.outputs, listed(result)):
            buffer.copy_(value)

    def registerPersistentData(self) -> None:
        """Make `inputs` and `outputs` of the shapes that the trace found; values pass through them."""
        self.inputs = [torch.zeros(shape) for shape in self.in_shapes]
        self.outputs = [torch.zeros(shape) for shape in self.out_shapes]

    def __call__(self, *input: torch.Tensor, **kwargs: Any) -> Any:
        """Return what the layer makes of the tensors: a tensor if it returns one, else a list.

        Keyword arguments are dropped, as in PopTorch, with a warning.

        Raises:
            Error: The model is a training model, or another operator of it has the same ID.
        """
        if kwargs:
            logger.warning("CPU operator %r: keyword arguments %s are dropped.", self.ID, sorted(kwargs))
        trace = active()
        if trace is None:
            return self.layer_to_call(*input)
        if trace.training:
            raise backend_error(
                f"The CPU operator {self.ID!r} is only supported in inference: wrap with poptorch.inferenceModel."
            )
        for node in trace.graph.nodes:
            if isinstance(node.target, _HostCall) and node.target.operator is not self and node.target.ID == self.ID:
                raise backend_error(f"Two CPU operators of the model have the ID {self.ID!r}: give each its own.")
        self.in_shapes = [tuple(trace.traced(tensor).meta.shape) for tensor in input]
        # As on the host: outside the trace, and with the model's own tensors in place.
        with running(None), trace.outside(), trace.host_tensors(), torch.no_grad():
            example = self.layer_to_call(*[torch.zeros(shape) for shape in self.in_shapes])
        self.out_shapes = [tuple(value.shape) for value in listed(example)]
        if any(value.dtype is not torch.float32 for value in listed(example)):
            logger.warning("CPU operator %r: its results are handed over as float32.", self.ID)
        with trace.outside():
            self.registerPersistentData()
        shapes = self.out_shapes
        outputs = trace.record(
            _HostCall(self), *input, result=lambda: [torch.empty(shape, device="meta") for shape in shapes]
        )
        return outputs[0] if isinstance(example, torch.Tensor) else outputs


class _HostCall:
    """The kernel of one call of a CPU operator, with the shapes of that call."""

    runs_every_time = True
    __name__ = "CPU"

    def __init__(self, operator: CPU) -> None:
        self.operator, self.ID = operator, operator.ID
        self._in_shapes, self._out_shapes = operator.in_shapes, operator.out_shapes

    def __call__(self, *values: torch.Tensor) -> List[torch.Tensor]:
        operator = self.operator
        operator.in_shapes, operator.out_shapes = self._in_shapes, self._out_shapes
        operator.registerPersistentData()
        for buffer, value in zip(operator.inputs, values):
            buffer.copy_(value)
        operator.execute()
        return [buffer.clone() for buffer in operator.outputs]
