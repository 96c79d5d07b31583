"""Loops and branches that run on the device: the only control flow that does not unroll.

Their bodies are traced once, into graphs of their own.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

import torch

from ignite_ipu.emulator.compiler.graph import Graph, build, live
from ignite_ipu.emulator.errors import backend_error
from ignite_ipu.emulator.logs import logger
from ignite_ipu.emulator.trace.active import IpuTensor, Trace, active, running
from ignite_ipu.emulator.trace.capture import Capture
from ignite_ipu.emulator.values.structures import listed

_BodyFunction = Callable[..., Any]


def for_loop(count: int, body: _BodyFunction, inputs: List[torch.Tensor]) -> List[torch.Tensor]:
    """Run `body` `count` times on the device, each time on its previous result; for inference only.

    The body is traced once, so that Python values in it are those of the trace. It may read tensors from outside.
    Outside a traced model it runs once, as in PopTorch, with a warning when `count` is not 1.

    Args:
        body: Takes as many tensors as `inputs` has, and returns as many of the same shapes and types.
        inputs: Tensors of which the first run gets copies.

    Returns: Results of the last run, as a list.

    Raises:
        ValueError: `inputs` is no list of tensors.
        Error: The model is a training model, or the body returns something else than it takes.
    """
    _check_list("for_loop", "inputs", inputs)
    for index, value in enumerate(inputs):
        if not isinstance(value, torch.Tensor):
            raise ValueError(f"for_loop: input {index} must be a tensor, got {value!r}.")
    trace = active()
    if trace is None:
        if count != 1:
            logger.warning("for_loop runs its body once outside a wrapped model, not %s times, as in PopTorch.", count)
        return listed(body(*[value.clone() for value in inputs]))
    _refuse_training("for_loop", trace)
    given: Any = count
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise backend_error(f"for_loop: count must be an int of 0 or more, got {count!r}.")
    traced = _traced("for_loop", body, inputs)
    inside = [trace.traced(value).meta for value in inputs]
    _check_same("for_loop", "the body's outputs", traced.outputs, "its inputs", inside)

    def run_loop(values: Sequence[torch.Tensor], captured: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        # Copies: on the device no two tensors share memory, and a body may work in place.
        current = [value.clone() for value in values]
        for _ in range(count):
            current = [value.clone() for value in traced.run(current, captured)]
        return current

    return _record(trace, "for_loop", run_loop, traced, list(inputs), list(traced.captured))


def cond(
    condition: torch.Tensor,
    then_body: _BodyFunction,
    then_inps: List[torch.Tensor],
    else_body: _BodyFunction,
    else_inps: List[torch.Tensor],
) -> List[torch.Tensor]:
    """Run one of two bodies on the device, chosen anew at every execution; for inference only.

    Both bodies are traced, and must return the same number of tensors of the same shapes and types.

    Args:
        condition: A scalar of type bool: true runs `then_body(*then_inps)`.

    Returns: Results of the chosen body, as a list.

    Raises:
        ValueError: `then_inps` or `else_inps` is no list.
        Error: The model is a training model, the condition is no bool scalar, an input is no tensor, or the bodies
            differ in their results.
    """
    given = {"then_inps": then_inps, "else_inps": else_inps}
    for argument, inputs in given.items():
        _check_list("cond", argument, inputs)
    trace = active()
    if trace is None:
        return listed(then_body(*then_inps) if bool(condition) else else_body(*else_inps))
    _refuse_training("cond", trace)
    if not isinstance(condition, torch.Tensor):
        raise backend_error(
            f"cond: the condition must be a scalar tensor of type bool, got {condition!r}. A choice by a Python value "
            "is made while the model is traced: write it with if."
        )
    for argument, inputs in given.items():
        for index, value in enumerate(inputs):
            if not isinstance(value, torch.Tensor):
                raise backend_error(
                    f"cond: {argument}[{index}] must be a tensor while the model is traced, got {value!r}. A body may "
                    "use Python values from outside: leave it out of the inputs."
                )
    meta = trace.traced(condition).meta
    if meta.dtype is not torch.bool or meta.numel() != 1:
        raise backend_error(
            f"cond: the condition must be a scalar tensor of type bool, got {meta.dtype} of shape {tuple(meta.shape)}."
        )
    then, other = _traced("cond", then_body, then_inps), _traced("cond", else_body, else_inps)
    _check_same("cond", "then_body's outputs", then.outputs, "else_body's outputs", other.outputs)

    def run_branch(chosen: torch.Tensor, *tensors: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        branch, (values, captured) = (then, tensors[:2]) if bool(chosen) else (other, tensors[2:])
        return [value.clone() for value in branch.run([value.clone() for value in values], captured)]

    tensors = [list(each) for each in (then_inps, then.captured, else_inps, other.captured)]
    return _record(trace, "cond", run_branch, then, condition, *tensors)


def _record(
    trace: Trace, name: str, kernel: Callable[..., List[torch.Tensor]], body: _Body, *args: Any
) -> List[torch.Tensor]:
    kernel.__name__ = name
    return trace.record(kernel, *args, result=lambda: list(map(torch.empty_like, body.outputs)))


def _check_list(name: str, argument: str, value: Any) -> None:
    if not isinstance(value, list):
        raise ValueError(f"{name} expects {argument} to be a list of tensors, got {type(value).__qualname__}.")


def _refuse_training(name: str, trace: Trace) -> None:
    if trace.training:
        raise backend_error(f"{name} is only supported in inference: wrap the model with poptorch.inferenceModel.")


def _check_same(
    name: str, what: str, found: Sequence[torch.Tensor], like: str, expected: Sequence[torch.Tensor]
) -> None:
    if len(found) != len(expected):
        raise backend_error(f"{name}: {what} must be as many as {like}: {len(found)} and {len(expected)}.")
    for index, (one, other) in enumerate(zip(found, expected)):
        if one.shape != other.shape:
            problem = f"shape, not {tuple(one.shape)} and {tuple(other.shape)},"
        elif one.dtype != other.dtype:
            problem = f"type, not {one.dtype} and {other.dtype},"
        else:
            continue
        raise backend_error(f"{name}: {what} and {like} must have the same {problem} at position {index}.")


class _Body(NamedTuple):
    """A traced body."""

    graph: Graph  # takes the body's inputs and then the captured tensors
    captured: Tuple[IpuTensor, ...]  # of the outer trace: those from outside that the body reads
    outputs: Tuple[torch.Tensor, ...]  # meta tensors like its results

    def run(self, inputs: Sequence[torch.Tensor], captured: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        graph = self.graph
        values = graph.run(*inputs, *captured, *graph.constants)
        return [graph.frozen[index] if place is None else values[place] for index, place in enumerate(graph.positions)]


class _BodyCapture(Capture):
    """The trace of a body. A tensor of the outer trace becomes one more input."""

    def __init__(self, outer: Capture) -> None:
        super().__init__(outer.placement, outer.precision)
        self.outer = self._outside = outer
        self.default_dtype = outer.default_dtype
        self._grad_mode = self.training = False
        # A host tensor means the same inside and outside, and tensors of the model count as such.
        self.tensors.stand_ins = outer.tensors.stand_ins
        self.warned, self.scope, self.autocast = outer.warned, outer.scope, outer.autocast
        self.checks, self.host_tensors = outer.checks, outer.host_tensors
        self.captured: Dict[int, Tuple[IpuTensor, IpuTensor]] = {}

    def add_constant(self, tensor: torch.Tensor, name: str = "constant") -> IpuTensor:
        return self._inner(self._outside.add_constant(tensor, name))

    def traced(self, value: Any) -> Any:
        value = super().traced(value)
        return self._inner(value) if isinstance(value, IpuTensor) and value.capture is not self else value

    def _inner(self, tensor: IpuTensor) -> IpuTensor:
        tensor = self._outside.traced(tensor)
        if id(tensor) not in self.captured:
            inner = self._placeholder(f"captured_{len(self.captured)}", tensor.meta, requires_grad=False)
            self.captured[id(tensor)] = (tensor, inner)
            self.placeholders.inputs[f"captured {len(self.captured)}"] = inner
        return self.captured[id(tensor)][1]


def _traced(what: str, body: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> _Body:
    """Call `body` once on stand-ins for `inputs`, tensors of the running trace; messages say `what` it belongs to."""
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
    modified = [outside for outside, inside in inner.captured.values() if inner.writers.wrote(inside.origin)]
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
    return _Body(graph, captured, tuple(each.meta for each in traced))
