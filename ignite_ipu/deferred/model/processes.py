"""Backward passes of models that several processes train together, and averages of gradients on the host."""

from __future__ import annotations

from typing import Dict, Iterable, List, Sequence

import torch
from torch import nn

from ignite_ipu.deferred.graph.step_graph import Loss, gradient_path
from ignite_ipu.errors import CaptureError, listed
from ignite_ipu.program.user_code import Line
from ignite_ipu.session.data_parallel import Reducer, has_reducers, reducer_of, reducers_within
from ignite_ipu.torch_names.modules import NormWithStatistics


def note_backward(loss: Loss) -> List[Reducer]:
    """Note the backward pass of a loss; returns the reducers that average gradients at its end, in their order."""
    if not has_reducers():
        return []
    reducers: Dict[int, Reducer] = {}
    for operation in gradient_path(loss.value):
        model = None if operation.model is None else operation.model.model
        reducer = None if model is None else reducer_of(model)
        if model is not None and reducer is not None:
            reducers[reducer.number] = reducer
            if operation.signature.writes and reducer.broadcasts_buffers:
                _check_written(model, operation.signature.writes, operation.line)
    return [reducers[number] for number in sorted(reducers) if reducers[number].went_backward()]


def _check_written(model: nn.Module, writes: Iterable[str], line: Line) -> None:
    parts = ((name, model.get_submodule(name.rpartition(".")[0])) for name in writes)
    written = [name for name, part in parts if not isinstance(part, NormWithStatistics)]
    if written:
        raise CaptureError(
            f"The call of {type(model).__name__} at {line} writes {listed(written, 2)}, and DistributedDataParallel "
            "copies buffers of process 0 to the others before each call, which a compiled step cannot. Pass "
            "broadcast_buffers=False to it, or to accelerate's DistributedDataParallelKwargs: each process has its own "
            "then."
        )


def average(reducers: Sequence[Reducer], parameters: Sequence[torch.Tensor], repeated: bool = False) -> None:
    """Average the gradients of parameters on the host, of models of some reducers, over all processes.

    If `repeated`, they are those of the last update once more.
    """
    if not reducers:
        return
    job, ids = reducers[0].job, frozenset().union(*[reducer.ids for reducer in reducers])
    if not job.on_host:  # else the processes have agreed on this
        for reducer in reducers:
            reducer.notify()
        job.agree(0, gradients=False, on_host=True, repeated=repeated)
    job.average([parameter for parameter in parameters if id(parameter) in ids])


def forget_average(model: nn.Module) -> None:
    """Note that the last update of a model was taken back, which all its processes have made."""
    for reducer in reducers_within(model)[:1]:
        reducer.job.take_back()
