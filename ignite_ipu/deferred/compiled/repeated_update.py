"""`RepeatedUpdate`: the last update once more, by one function that compares what it was made with."""

from __future__ import annotations

from typing import Any, List, Optional, Protocol, Sequence

import torch

from ignite_ipu.deferred.compiled.modes import Modes
from ignite_ipu.deferred.compiled.training import explain_failure
from ignite_ipu.deferred.compiled.update import CompiledUpdate, Place, keep_beside
from ignite_ipu.deferred.compiled.update_gradients import UpdateGradients
from ignite_ipu.deferred.graph.modes_then import ModesThen
from ignite_ipu.deferred.graph.operations import CLOCK, finish_all, unknown_values
from ignite_ipu.deferred.graph.step_graph import Chain, Loss, MicroBatch, Tape
from ignite_ipu.deferred.tensor.written_tensors import WAITING, write_known
from ignite_ipu.session.repeated_call import RepeatedCall
from ignite_ipu.session.session import IPUSession
from ignite_ipu.session.training import Trained
from ignite_ipu.torch_names.tensors import version_of


class LastPrograms(Protocol):
    """The programs that made the last update, `FusedPrograms`, as this repeats it."""

    session: IPUSession
    modes: Modes
    gradients: UpdateGradients
    trained: Optional[Trained]
    compiled: Optional[CompiledUpdate]
    tape: Optional[Tape]

    def results(self, compiled: CompiledUpdate, batches: Sequence[MicroBatch]) -> Any: ...


class RepeatedUpdate:
    """An update of one loss by the only optimizer, in one process, that the next one may repeat.

    A steady loop makes one update over and over. `FusedPrograms.run` finds the program, the inputs and the results by
    many small functions. Their code has left the processor's caches by then, as a device call goes through megabytes.
    So this has the facts at hand, and compares them in one function.

    Args:
        programs: The programs of the optimizer, whose `repeated` this is until they make another kind of update.
        chain: Recognises losses that are computed alike.
        modes: The modes of the models in the update.
        compiled: The update, of one undivided micro-batch, without changing numbers.
        places: Those of the values that it returned.
    """

    def __init__(
        self,
        programs: LastPrograms,
        chain: Chain,
        modes: ModesThen,
        compiled: CompiledUpdate,
        places: Sequence[Place],
    ) -> None:
        self._programs, self._chain, self._then, self._compiled = programs, chain, modes, compiled
        self._gradients, self._modes = programs.gradients, programs.modes
        self._numbers, self._is_single = compiled.numbers, not compiled.outputs
        self._places, self._results = list(places), [compiled.returned[place] for place in places]
        self._call: Optional[RepeatedCall] = programs.session.calls.repeated()

    @classmethod
    def of(
        cls, programs: LastPrograms, chain: Chain, compiled: CompiledUpdate, places: Sequence[Place]
    ) -> Optional[RepeatedUpdate]:
        """Return the update that was just made, for the next one; None if that takes more."""
        if chain.modes is None or compiled.variable or compiled.split.pieces > 1 or not compiled.graph.inputs:
            return None
        return cls(programs, chain, chain.modes, compiled, places)

    def run(self, loss: Loss) -> bool:
        """Make the update of a loss as the last one; returns False, before anything has run, if it takes more.

        Raises an error as `FusedPrograms.run` does.
        """
        batch, programs, gradients = loss.batch, self._programs, self._gradients
        if batch is None or batch.chain is not self._chain or programs.compiled is not self._compiled:
            return False
        if batch.numbers != self._numbers or gradients.norms or gradients.wanted or not self._modes.are(self._then):
            return False
        operations = batch.operations
        unknown = unknown_values(operations, set(operations))
        read = [(position, value) for position, value, is_read in unknown if is_read]
        if [(position, value.index) for position, value in read] != self._places:
            return False
        leaves: List[torch.Tensor] = []
        for item in batch.inputs:
            tensor = item.tensor
            if type(tensor) is not torch.Tensor or version_of(tensor) != item.writes:
                return False
            leaves.append(tensor.contiguous() if tensor.dim() else tensor.reshape(1))
        call, session = self._call, programs.session
        try:
            results = None if call is None else call.run(leaves)
        except BaseException as error:
            programs.compiled = None
            explain_failure(session, self._compiled, error)
            raise
        if results is None:
            if session.trainers.current is not programs.trained:
                return False
            results = programs.results(self._compiled, [batch])
            session.calls.note_updates(1)
            self._call = session.calls.repeated()
        programs.tape = Tape([loss])
        finish_all(operations)
        for (_, value), place in zip(read, self._results):
            output, size = results if self._is_single else results[place], value.shape.size
            value.take(output if size or not output.dim() else output[0])
            if value.consumers:
                keep_beside(value)
        CLOCK.settled = CLOCK.now
        if WAITING:
            write_known()
        return True
