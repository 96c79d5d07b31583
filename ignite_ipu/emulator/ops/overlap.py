"""Letting the transfer of an input or output overlap with compute; it changes no value."""

from __future__ import annotations

import functools
from typing import Any, Callable, List

import torch
from torch import fx

from ignite_ipu.emulator.enums import OutputMode, OverlapMode
from ignite_ipu.emulator.errors import backend_error
from ignite_ipu.emulator.ops.identity import KERNELS
from ignite_ipu.emulator.trace.active import Trace, active
from ignite_ipu.emulator.trace.traced_tensor import IpuTensor
from ignite_ipu.emulator.values.custom_types import flatten_tensors, map_tensors


def set_overlap_for_input(input_tensors: Any, mode: OverlapMode) -> Any:
    """Return the inputs, whose transfer to the device overlaps with compute.

    The options need `ShardedExecution`, on one IPU too, I/O tiles, and the output mode `All` or `Sum`.

    Args:
        input_tensors: A tensor that forward was given, or a structure of them; what is no tensor stays as it is.
        mode: The loop with whose steps the transfer overlaps.

    Raises:
        AssertionError: `mode` is no `OverlapMode`.
        Error: A tensor is no input; or, found when forward has returned, it is used otherwise too, or the options do
            not allow overlap.
    """
    return _marked("set_overlap_for_input", input_tensors, mode, _check_input)


def set_overlap_for_output(output_tensors: Any, mode: OverlapMode) -> Any:
    """Return the outputs, whose transfer from the device overlaps with compute.

    The options need `ShardedExecution`, on one IPU too, I/O tiles, and the output mode `All` or `Sum`.

    Args:
        output_tensors: A tensor that forward returns, or a structure of them; what is no tensor stays as it is.
        mode: The loop with whose steps the transfer overlaps.

    Raises:
        AssertionError: `mode` is no `OverlapMode`.
        Error: A tensor is not returned, or twice, or the options do not allow overlap; found when forward has returned.
    """
    return _marked("set_overlap_for_output", output_tensors, mode, _check_output)


_Check = Callable[[fx.Node, fx.Node, List[fx.Node]], None]
"""Refuses what a node, and the mark on it, must not meet, given the nodes that are returned."""


def _marked(name: str, tensors: Any, mode: OverlapMode, check: _Check) -> Any:
    if not isinstance(mode, OverlapMode):
        raise AssertionError(f"{name} takes a poptorch.OverlapMode, got {mode!r}.")
    trace = active()
    return tensors if trace is None else map_tensors(tensors, functools.partial(_mark, trace, name, mode, check))


def _mark(trace: Trace, name: str, mode: OverlapMode, check: _Check, tensor: torch.Tensor) -> IpuTensor:
    node = trace.traced(tensor).node
    if check is _check_input and node not in [traced.origin for traced in trace.inputs.values()]:
        raise backend_error(
            f"set_overlap_for_input was applied to {node.name}, which is not a tensor input to the model: apply it to "
            "what forward was given, before anything else."
        )
    marked: IpuTensor = trace.record(KERNELS[name], tensor)
    marked.node.meta["overlap"] = mode
    marks = next((known for known in trace.checks if isinstance(known, _Marks)), None)
    if marks is None:
        marks = _Marks()
        trace.checks.append(marks)
    marks.checks.append(functools.partial(check, node, marked.node))
    marks.overlaps |= mode is not OverlapMode.NoOverlap
    return marked


def _check_input(node: fx.Node, marked: fx.Node, returned: List[fx.Node]) -> None:
    if len(node.users) > 1:
        raise backend_error(
            f"set_overlap_for_input must be the only op applied to the input {node.name}: use what it returned "
            "everywhere else."
        )


def _check_output(node: fx.Node, marked: fx.Node, returned: List[fx.Node]) -> None:
    if marked not in returned:
        raise backend_error(
            f"set_overlap_for_output was applied to {node.name}, which is not a tensor output of the model: "
            "return what it returned, unchanged."
        )
    if returned.count(marked) + returned.count(node) > 1:
        raise backend_error(
            f"set_overlap_for_output: the output {node.name} is returned twice, marked or as it was before. "
            "Return what set_overlap_for_output returned, once."
        )


class _Marks:
    """Checks for when forward has returned: each marked tensor, then the options, if any mode asks for overlap."""

    def __init__(self) -> None:
        self.checks: List[Callable[[List[fx.Node]], None]] = []
        self.overlaps = False

    def __call__(self, structure: Any, options: Any, placement: Any) -> None:
        returned = [leaf.node for leaf in flatten_tensors(structure) if isinstance(leaf, IpuTensor)]
        for check in self.checks:
            check(returned)
        if not self.overlaps:
            return
        if placement.is_pipelined_execution:
            raise backend_error(
                "Overlapped IO is not supported with poptorch.PipelinedExecution, the default strategy, on one IPU "
                "either: call options.setExecutionStrategy(poptorch.ShardedExecution())."
            )
        if not options.TensorLocations.exists("numIOTiles"):
            raise backend_error(
                "No IO tiles allocated: overlapped IO needs some of each IPU's tiles. Call "
                "options.TensorLocations.numIOTiles(32) or more."
            )
        if returned and options.output_mode not in (OutputMode.All, OutputMode.Sum):
            raise backend_error(
                "Overlapped IO, of inputs too, needs the output mode All or Sum for all outputs, and it is "
                f"{OutputMode(options.output_mode).name}: call options.outputMode(poptorch.OutputMode.All)."
            )
