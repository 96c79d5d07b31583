"""Averages of gradients over processes, which PopTorch makes inside a fused update."""

from __future__ import annotations

from typing import Any, FrozenSet, Optional, Sequence, Tuple

from torch import nn

from ignite_ipu.deferred.compiled.modes import Modes
from ignite_ipu.deferred.graph.modes_then import ModesThen
from ignite_ipu.deferred.graph.step_graph import MicroBatch
from ignite_ipu.errors import CaptureError, listed
from ignite_ipu.program.user_code import current_line
from ignite_ipu.session.data_parallel import Reducer, covering, has_reducers, reducers_within
from ignite_ipu.session.job import digest


class Averaging:
    """The processes that train a model together, as `DistributedDataParallel` has wrapped its parts."""

    def __init__(self, model: nn.Module, modes: Modes) -> None:
        self._model, self._modes = model, modes
        # The reducers, and the modes that they were found for.
        self._known: Tuple[Optional[ModesThen], Sequence[Reducer]] = (None, ())
        # Those of the model and its parts, and how many there were then.
        self._within: Tuple[int, Sequence[Reducer]] = (0, ())
        # The number of the last update's program, behind the key that it belongs to.
        self._digest: Tuple[Any, ...] = (None, 0, None, 0)

    def reducers(self, modes: ModesThen) -> Sequence[Reducer]:
        """Return the reducers of an update's gradients; nothing for those of this process alone.

        Raises:
            CaptureError: They average some of the gradients, and PopTorch those of all or none.
        """
        if not has_reducers():
            return ()
        if modes is not self._known[0]:
            trained = [parameter for parameter, trains in zip(self._modes.parameters, modes.trained) if trains]
            found, left = covering(self._model, trained)
            if left:
                raise CaptureError(
                    f"The update at {current_line()} is of {listed(left, 2)}, too, which DistributedDataParallel does "
                    "not have: each process would update its own, and PopTorch adds up all gradients of an update. "
                    "Make them parameters of the wrapped model, or let another optimizer have them."
                )
            self._known = modes, found
        return self._known[1]

    def obstacle(self, own: Optional[FrozenSet[int]]) -> Optional[str]:
        """Return why gradients of the pending update would stay those of their process, None if they would not.

        Args:
            own: The ids of the parameters that are updated; None for all.
        """
        if self._within[0] != Reducer.made:
            self._within = Reducer.made, reducers_within(self._model)
        for reducer in self._within[1]:
            if reducer.local and (own is None or not own.isdisjoint(reducer.ids)):
                return (
                    f"The update at {current_line()} is of gradients that no process has averaged: the last backward() "
                    "was of a call within no_sync(), or not the first since a call of the model. PyTorch lets each "
                    "process update by its own, and PopTorch adds up those of all. Call the model outside of no_sync() "
                    "for the last backward() of an update."
                )
        return None

    def agree(self, reducer: Reducer, batches: Sequence[MicroBatch], modes: ModesThen, gradients: bool) -> bool:
        """Return whether a process reads gradients of an update that all processes make.

        Raises:
            CaptureError: They make different ones, or one of them makes its updates on the host.
        """
        graph, count = batches[0].graph, len(batches)
        known, of_count, of_modes, _ = self._digest
        if known is not graph or of_count != count or of_modes is not modes:
            self._digest = graph, count, modes, digest(graph.description, count, modes.trained)
        agreed = reducer.job.agree(self._digest[3], gradients, on_host=False)
        if agreed.on_host:
            raise CaptureError(f"Another process makes the update at {current_line()} on the host.")
        if not agreed.same:
            inputs = ", ".join("x".join(map(str, shape)) or "a number" for shape, _ in graph.inputs)
            own = f"{count} micro-batches, {len(graph.steps)} operations, inputs of {inputs}"
            raise CaptureError(
                f"The processes make different updates at {current_line()} ({reducer.job.differing(own)}), and on IPUs "
                "they are one program. Give all processes batches of one shape, and the same calls."
            )
        return agreed.gradients
