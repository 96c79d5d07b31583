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
        Error: A tensor is no input or is used otherwise too, or the options do not allow overlap. All but the first are
            found when forward has returned.
    """
    return _marked("input", input_tensors, mode, _mark_input)


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
    return _marked("output", output_tensors, mode, _mark_output)


_Mark = Callable[[Trace, OverlapMode, torch.Tensor], torch.Tensor]
_Misuse = Callable[[List[fx.Node]], None]


def _marked(direction: str, tensors: Any, mode: OverlapMode, mark: _Mark) -> Any:
    if not isinstance(mode, OverlapMode):
        raise AssertionError(f"set_overlap_for_{direction} takes a poptorch.OverlapMode, got {mode!r}.")
    trace = active()
    return tensors if trace is None else map_tensors(tensors, functools.partial(mark, trace, mode))


def _mark_input(trace: Trace, mode: OverlapMode, tensor: torch.Tensor) -> torch.Tensor:
    node = trace.traced(tensor).node
    if node not in [traced.origin for traced in trace.inputs.values()]:
        raise backend_error(
            f"set_overlap_for_input was applied to {node.name}, which is not a tensor input to the model: apply it to "
            "what forward was given, before anything else."
        )

    def check(returned: List[fx.Node]) -> None:
        if len(node.users) > 1:
            raise backend_error(
                f"set_overlap_for_input must be the only op applied to the input {node.name}: use what it returned "
                "everywhere else."
            )

    return _recorded(trace, "set_overlap_for_input", mode, tensor, check)


def _mark_output(trace: Trace, mode: OverlapMode, tensor: torch.Tensor) -> torch.Tensor:
    source = trace.traced(tensor).node

    def check(returned: List[fx.Node]) -> None:
        if marked.node not in returned:
            raise backend_error(
                f"set_overlap_for_output was applied to {source.name}, which is not a tensor output of the model: "
                "return what it returned, unchanged."
            )
        if returned.count(marked.node) + returned.count(source) > 1:
            raise backend_error(
                f"set_overlap_for_output: the output {source.name} is returned twice, marked or as it was before. "
                "Return what set_overlap_for_output returned, once."
            )

    marked = _recorded(trace, "set_overlap_for_output", mode, tensor, check)
    return marked


def _recorded(trace: Trace, name: str, mode: OverlapMode, tensor: torch.Tensor, misuse: _Misuse) -> IpuTensor:
    marked: IpuTensor = trace.record(KERNELS[name], tensor)
    marked.node.meta["overlap"] = mode
    marks = next((check for check in trace.checks if isinstance(check, _Marks)), None)
    if marks is None:
        marks = _Marks()
        trace.checks.append(marks)
    marks.misuses.append(misuse)
    marks.overlaps |= mode is not OverlapMode.NoOverlap
    return marked


class _Marks:
    """Checks for when forward has returned: each marked tensor, then the options, if anything overlaps.

    Attributes:
        misuses: Raise if a marked tensor meets something that it may not, given the nodes that are returned.
        overlaps: Whether any mode asks for overlap.
    """

    def __init__(self) -> None:
        self.misuses: List[_Misuse] = []
        self.overlaps = False

    def __call__(self, structure: Any, options: Any, placement: Any) -> None:
        returned = [leaf.node for leaf in flatten_tensors(structure) if isinstance(leaf, IpuTensor)]
        for misuse in self.misuses:
            misuse(returned)
        if self.overlaps:
            _check_options(bool(returned), options, placement)


def _check_options(returns: bool, options: Any, placement: Any) -> None:
    if placement.is_pipelined_execution:
        raise backend_error(
            "Overlapped IO is not supported with poptorch.PipelinedExecution, the default strategy, on one IPU either: "
            "call options.setExecutionStrategy(poptorch.ShardedExecution())."
        )
    if not options.TensorLocations.exists("numIOTiles"):
        raise backend_error(
            "No IO tiles allocated: overlapped IO needs some of each IPU's tiles. Call "
            "options.TensorLocations.numIOTiles(32) or more."
        )
    if returns and options.output_mode not in (OutputMode.All, OutputMode.Sum):
        raise backend_error(
            "Overlapped IO, of inputs too, needs the output mode All or Sum for all outputs, and it is "
            f"{OutputMode(options.output_mode).name}: call options.outputMode(poptorch.OutputMode.All)."
        )
