"""Running statistics of normalisations that calls of one update read and update."""

from __future__ import annotations

from typing import AbstractSet, FrozenSet, Sequence, Tuple

import torch.nn.functional as F

from ignite_ipu.deferred.graph.leaves import Input
from ignite_ipu.deferred.graph.operations import Operation
from ignite_ipu.deferred.graph.signatures import arguments_of
from ignite_ipu.deferred.graph.state import written_ids
from ignite_ipu.deferred.graph.step_graph import Loss
from ignite_ipu.deferred.graph.structure import unflatten
from ignite_ipu.errors import CaptureError
from ignite_ipu.torch_names.modules import NormWithStatistics

# The argument that enables updates of the running statistics, by function.
_FLAGS = {F.batch_norm: "training", F.instance_norm: "use_input_stats"}
_NONE: FrozenSet[int] = frozenset()


def refuse_later_statistics(losses: Sequence[Loss], evaluations: Sequence[Tuple[int, AbstractSet[int]]] = ()) -> None:
    """Refuse a call in evaluation mode if its statistics are updated before its loss goes backward.

    PyTorch's kernels compute the gradient with the later statistics then, and no device does.

    Args:
        losses: Those of an update, whose later calls may update the statistics.
        evaluations: The numbers of evaluations, which may, too, each with the ids of the buffers that it has written.
    """
    calls = {each for loss in losses for each in loss.operations if _may_have_statistics(each)}
    written = ((each.number, f"the call at {each.line}", written_ids(each)) for each in calls if each.signature.writes)
    updates = [*written, *[(number, "an evaluation", buffers) for number, buffers in evaluations]]
    for loss in losses if updates else ():
        for call in calls.intersection(loss.operations):
            for number, what, statistics in updates:
                if call.number < number <= loss.moment and not statistics.isdisjoint(_read(call)):
                    raise CaptureError(
                        f"The call at {call.line} normalises with running statistics, and {what} updates them before "
                        f"backward() at {loss.line}. PyTorch would compute the gradient of the first call with the "
                        "later statistics. Update them first, or call backward() before that."
                    )


def _may_have_statistics(call: Operation) -> bool:
    return call.model is not None or call.signature.function in _FLAGS


def _read(call: Operation) -> FrozenSet[int]:
    """Return the ids of the statistics of normalisations that a call has in evaluation mode."""
    modes = call.signature.modes
    if call.model is None or modes is None:
        return _read_by_function(call)
    training = modes.training_by_module()
    norms = [each for each in call.model.model.modules() if isinstance(each, NormWithStatistics)]
    evaluated = [each for each in norms if not training.get(id(vars(each)), True)]
    return frozenset(id(buffer) for each in evaluated for buffer in each.buffers())


def _read_by_function(call: Operation) -> FrozenSet[int]:
    """Return the ids of the statistics that a function of PyTorch's reads and does not update."""
    function = call.signature.function
    if function not in _FLAGS:
        return _NONE
    args, kwargs = unflatten(call.signature.structure, call.leaves)
    given = arguments_of(function, args, kwargs)
    if given[_FLAGS[function]]:
        return _NONE
    found = [given["running_mean"], given["running_var"]]
    return frozenset(id(each.tensor) for each in found if isinstance(each, Input))
