"""Letting the transfer of an input or output overlap with compute; it changes no value."""

from __future__ import annotations

import functools
from typing import Any, Callable, List

import torch

from ignite_ipu.emulator import capture as captures
from ignite_ipu.emulator.capture import Capture
from ignite_ipu.emulator.custom_types import flatten_tensors, map_tensors
from ignite_ipu.emulator.enums import OutputMode, OverlapMode
from ignite_ipu.emulator.errors import backend_error
from ignite_ipu.emulator.traced_tensor import IpuTensor


def set_overlap_for_input(input_tensors: Any, mode: OverlapMode) -> Any:
    """Return the inputs, whose transfer to the device overlaps with compute.

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

    Args:
        output_tensors: A tensor that forward returns, or a structure of them; what is no tensor stays as it is.
        mode: The loop with whose steps the transfer overlaps.

    Raises:
        AssertionError: `mode` is no `OverlapMode`.
        Error: A tensor is not returned, or twice, or the options do not allow overlap; found when forward has returned.
    """
    return _marked("output", output_tensors, mode, _mark_output)


_Mark = Callable[[Capture, OverlapMode, torch.Tensor], torch.Tensor]


def _marked(direction: str, tensors: Any, mode: OverlapMode, mark: _Mark) -> Any:
    if not isinstance(mode, OverlapMode):
        raise AssertionError(f"set_overlap_for_{direction} takes a poptorch.OverlapMode, got {mode!r}.")
    trace = captures.active()
    return tensors if trace is None else map_tensors(tensors, functools.partial(mark, trace, mode))


def _mark_input(trace: Capture, mode: OverlapMode, tensor: torch.Tensor) -> torch.Tensor:
    node = trace._to_traced(tensor).node
    if node not in [traced.origin for traced in trace.inputs.values()]:
        raise backend_error(
            f"set_overlap_for_input was applied to {node.name}, which is not a tensor input to the model: apply it to "
            "what forward was given, before anything else."
        )
    marked: IpuTensor = trace.record(_overlap_input, tensor)
    marked.node.meta["overlap"] = mode

    def check(structure: Any, options: Any, placement: Any) -> None:
        if len(node.users) > 1:
            raise backend_error(
                f"set_overlap_for_input must be the only op applied to the input {node.name}: use what it returned "
                "everywhere else."
            )
        _check_options(mode, options, placement)

    trace.checks.append(check)
    return marked


def _mark_output(trace: Capture, mode: OverlapMode, tensor: torch.Tensor) -> torch.Tensor:
    marked: IpuTensor = trace.record(_overlap_output, tensor)
    marked.node.meta["overlap"] = mode

    def check(structure: Any, options: Any, placement: Any) -> None:
        returned: List[Any] = [leaf.node for leaf in flatten_tensors(structure) if isinstance(leaf, IpuTensor)]
        name = marked.node.all_input_nodes[0].name
        if marked.node not in returned:
            raise backend_error(
                f"set_overlap_for_output was applied to {name}, which is not a tensor output of the model: return what "
                "it returned, unchanged."
            )
        if returned.count(marked.node) > 1:
            raise backend_error(f"set_overlap_for_output: the output {name} is returned twice; return it once.")
        if mode is not OverlapMode.NoOverlap and options.output_mode not in (OutputMode.All, OutputMode.Sum):
            raise backend_error(
                f"Overlapped output {name} needs the output mode All or Sum, and it is "
                f"{OutputMode(options.output_mode).name}: call options.outputMode(poptorch.OutputMode.All)."
            )
        _check_options(mode, options, placement)

    trace.checks.append(check)
    return marked


def _check_options(mode: OverlapMode, options: Any, placement: Any) -> None:
    if mode is OverlapMode.NoOverlap:
        return
    if placement.pipelined:
        raise backend_error(
            f"Overlapped IO is not supported with pipelined execution over {placement.ipus_per_replica} IPUs: use "
            "ShardedExecution or one IPU."
        )
    if not options.TensorLocations.exists("numIOTiles"):
        raise backend_error(
            "No IO tiles allocated: overlapped IO needs some of each IPU's tiles. Call "
            "options.TensorLocations.numIOTiles(32) or more."
        )


def _overlap_input(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view_as(tensor)


def _overlap_output(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view_as(tensor)


_overlap_input.__name__ = "set_overlap_for_input"
_overlap_output.__name__ = "set_overlap_for_output"
