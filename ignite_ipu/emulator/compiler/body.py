"""Tracing the body of a loop or branch once, into a graph of its own."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

import torch

from ignite_ipu.emulator.compiler.graph import Graph, build, live
from ignite_ipu.emulator.errors import backend_error
from ignite_ipu.emulator.trace.active import active, running
from ignite_ipu.emulator.trace.capture import Capture
from ignite_ipu.emulator.trace.traced_tensor import IpuTensor


class Body(NamedTuple):
    """A traced body.

    Attributes:
        graph: Takes the body's inputs and then the captured tensors.
        captured: Tensors from outside that the body reads, in the outer trace.
        outputs: Shape and type of what it returns, as meta tensors.
    """

    graph: Graph
    captured: Tuple[IpuTensor, ...]
    outputs: Tuple[torch.Tensor, ...]

    def run(self, inputs: Sequence[torch.Tensor], captured: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        graph = self.graph
        values = graph.run(*inputs, *captured, *graph.constants)
        return [graph.frozen[index] if place is None else values[place] for index, place in enumerate(graph.positions)]


class _BodyCapture(Capture):
    """The trace of a body. What it uses of the outer trace becomes one more input."""

    def __init__(self, outer: Capture) -> None:
        super().__init__(outer.placement, outer.precision)
        self.outer, self.default_dtype = outer, outer.default_dtype
        self._grad_mode = self.training = False
        # A host tensor means the same inside and outside, and what the model uses is counted as one.
        self._stand_ins = outer._stand_ins
        self.warned, self.scope, self.autocast = outer.warned, outer.scope, outer.autocast
        self.checks, self.host_tensors = outer.checks, outer.host_tensors
        self.folds = False
        self.captured: Dict[int, Tuple[IpuTensor, IpuTensor]] = {}

    def add_constant(self, tensor: torch.Tensor, name: str = "constant") -> IpuTensor:
        assert self.outer is not None
        return self._inner(self.outer.add_constant(tensor, name))

    def traced(self, value: Any) -> Any:
        value = super().traced(value)
        return self._inner(value) if isinstance(value, IpuTensor) and value.capture is not self else value

    def _inner(self, tensor: IpuTensor) -> IpuTensor:
        assert self.outer is not None
        tensor = self.outer.traced(tensor)
        if id(tensor) not in self.captured:
            inner = self._placeholder(f"captured_{len(self.captured)}", tensor.meta, requires_grad=False)
            self.captured[id(tensor)] = (tensor, inner)
            self.inputs[f"captured {len(self.captured)}"] = inner
        return self.captured[id(tensor)][1]


def trace_body(what: str, body: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> Body:
    """Call `body` once on stand-ins for `inputs` and return its graph.

    Args:
        what: What the body belongs to, for messages.
        inputs: Tensors of the running trace.
    """
    outer = active()
    assert isinstance(outer, Capture)
    inner = _BodyCapture(outer)
    with outer.outside():
        shapes = [outer.traced(tensor).meta for tensor in inputs]
    arguments = [inner.add_input(str(index), shape) for index, shape in enumerate(shapes)]
    with running(inner), inner:
        result = body(*arguments)
        outputs = [result] if isinstance(result, torch.Tensor) else result
        if not isinstance(outputs, (list, tuple)) or not all(isinstance(each, torch.Tensor) for each in outputs):
            raise backend_error(f"{what}: the body must return a tensor or a list of tensors, got {result!r}.")
        traced: List[IpuTensor] = [inner.traced(each) for each in outputs]
    modified = [outside for outside, inside in inner.captured.values() if inner.is_written(inside.origin)]
    if modified:
        raise backend_error(
            f"{what}: the body modifies a tensor from outside in place ({modified[0]!r}), which is not supported. "
            "Pass it as an input and return the new value."
        )
    used = live(inner, traced)
    outer.unsupported += [dataclasses.replace(use, node=None) for use in inner.unsupported if use.node in used]
    with outer.outside():
        graph = build(inner, traced, loss=None)
    captured = tuple(outside for outside, _ in inner.captured.values())
    return Body(graph, captured, tuple(each.meta for each in traced))
