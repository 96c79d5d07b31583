"""`IPUEngine`: an Ignite engine whose iterations are IPU device calls."""

from __future__ import annotations

from typing import Any, Callable, Iterable, Optional

import torch
from ignite.engine import Engine, Events, State
from torch.utils.data import DataLoader

from ignite_ipu.engines.call_loader import MicroBatches
from ignite_ipu.engines.loaders import Loaders
from ignite_ipu.engines.steps import IPUStep
from ignite_ipu.errors import logger
from ignite_ipu.program.config import IPUConfig
from ignite_ipu.program.forward.randomness import draws_put_back
from ignite_ipu.program.refusal_frames import brief_refusals
from ignite_ipu.program.tensors.trees import map_tensors
from ignite_ipu.session.executables import ExportedProgram, PathLike
from ignite_ipu.session.hooks import IPUEvents
from ignite_ipu.session.program import ModelProgram
from ignite_ipu.session.session import IPUSession


class IPUEngine(Engine):
    """An Ignite engine whose steps are device calls.

    It swaps the loaders it is given for PopTorch's, fires `IPUEvents`, and releases the device when an exception ends a
    run: the newest weights are on the host then.

    Args:
        process_function: The step.
        session: The session that it shares with the other engines over the model.
        loaders: Returns the factory of PopTorch's loaders, once the options are known.

    Attributes:
        ipu: The session.
        config: Settings that a factory made it with.
    """

    config = IPUConfig()

    def __init__(self, process_function: IPUStep, session: IPUSession, loaders: Callable[[], Loaders]) -> None:
        super().__init__(self._make_calls)
        self._step = process_function
        self._call: Optional[MicroBatches] = None
        self._warned_of_changes = False
        self.ipu = session
        self._loaders = loaders
        self._owns_batches = True
        session.hooks.listen(self)
        self.add_event_handler(Events.EPOCH_STARTED, session.check_model)
        self.add_event_handler(Events.EPOCH_COMPLETED, session.changes.refuse_replaced)
        self.add_event_handler(Events.EPOCH_COMPLETED | Events.COMPLETED, session.end_pass)
        self.add_event_handler(Events.GET_BATCH_COMPLETED, self._show_batch)

    @brief_refusals
    def run(self, data: Optional[Iterable[Any]] = None, *args: Any, **kwargs: Any) -> State:
        """Run as `Engine.run` does, over PopTorch's loader for `data`.

        Raises:
            LoaderError: The data is smaller than one device call, or empty (a `ValueError`, too, as Ignite's).
        """
        return super().run(self._swapped(data), *args, **kwargs)

    def set_data(self, data: Any) -> None:
        """Go on with other data, as `Engine.set_data` does."""
        super().set_data(self._swapped(data))

    def compile(self, batch: Any) -> None:
        """Compile the program for batches like this one, ahead of `run`, which then does not compile it.

        Weights, buffers, the optimizer's state and random numbers stay as they are. With an offline target
        (`options.useOfflineIpuTarget()`) no IPUs are needed; otherwise they are taken.

        Args:
            batch: The data of one device call, as the engine's loader yields it, or the `DataLoader` for `run`, whose
                first such batch is used.

        Raises:
            LoaderError: The data is smaller than one device call.
            Exception: Any error of a run with such a batch, and any refusal of PopTorch.
        """
        self._compiled(batch)

    def compile_and_export(self, path: PathLike, batch: Any) -> None:
        """Compile as `compile` does, and write the executable to a file, for `load_executable`.

        A second file, `path` with the suffix `.json`, describes the source of the program. Weights are in
        neither: they are in checkpoints.

        Raises:
            OSError: The files cannot be written.
            Exception: As for `compile`.
        """
        self._compiled(batch).state.export(path)

    def load_executable(self, path: PathLike) -> None:
        """Take the program from a file of `compile_and_export`, with the first batch, instead of compiling it.

        The batch, the model, the optimizer and the options are then compared with those of the executable.
        PopTorch's file is a pickle on machines with the SDK: load only files that you trust.

        Raises:
            SessionError: The files are not there, or the program is compiled already. With the first batch: it is the
                executable of something else.
        """
        self._step.program().state.take(ExportedProgram(path))

    def _compiled(self, batch: Any) -> ModelProgram:
        with draws_put_back():
            return self._step.compile(self.one_batch(batch))

    def one_batch(self, data: Any) -> Any:
        """Return the first batch of a `DataLoader` that fills a device call; other data is taken for such a batch."""
        if not isinstance(data, DataLoader):
            return data
        generators = (getattr(each, "generator", None) for each in (data, getattr(data, "sampler", None)))
        with draws_put_back(*generators):
            return next(iter(self._swapped(data)))

    def prepared(self, batch: Any) -> Any:
        """Return inputs and targets of a batch."""
        return self._step.prepare(batch)

    def _swapped(self, data: Any) -> Any:
        loaders = self._loaders()
        swapped = loaders.swap(data)
        if swapped is not None:
            self._owns_batches = not loaders.reuses_memory(swapped)
        return swapped

    def _show_batch(self) -> None:
        """Have `state.batch` hold the rows of a whole call, in memory of its own: handlers keep batches."""
        batch: Any = self.state.batch
        if isinstance(batch, MicroBatches):
            self._call = batch
            self.state.batch = batch.show()
        elif not self._owns_batches:
            # An asynchronous loader yields its own memory, which the next batch overwrites.
            self.state.batch = map_tensors(batch, torch.clone)

    def _make_calls(self, engine: Engine, batch: Any) -> Any:
        """Make the device calls for `state.batch`, each of whose micro-batches is prepared by itself."""
        call, self._call = self._call, None
        if call is None:
            return self._step.run(batch)
        changed = call.as_changed(batch)
        if changed is None:
            return self._step.run(call)
        if not self._warned_of_changes:
            self._warned_of_changes = True
            logger.warning(
                "A handler has changed state.batch, which holds the rows of the %d micro-batches of a device call. If "
                "the change looks at a whole batch, as mixing samples does, its values differ from Ignite's own: make "
                "it in prepare_batch or in the collate_fn, which get one micro-batch at a time.",
                len(call),
            )
        return self._step.run(changed)

    def _handle_exception(self, e: BaseException) -> None:
        # Not an EXCEPTION_RAISED handler: with one attached, Ignite takes the exception for handled.
        self.ipu.release_after_failure()
        self.fire_event(IPUEvents.RUN_FAILED)
        super()._handle_exception(e)
