"""`IPUEngine` and `IPUTrainer`: Ignite engines whose iterations are IPU device calls."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Callable, Iterable, Mapping, Optional, Tuple

import torch
from ignite.engine import Engine, Events, State

from ignite_ipu.counting import Counts
from ignite_ipu.data_position import DataPosition
from ignite_ipu.deterministic import DeterministicRuns
from ignite_ipu.engine_steps import Step
from ignite_ipu.events import IPUEvents
from ignite_ipu.loaders import Loaders
from ignite_ipu.random_states import read_random_states, write_random_states
from ignite_ipu.rows import map_tensors
from ignite_ipu.session import IPUSession

__all__ = ["DeterministicIPUTrainer", "IPUEngine", "IPUTrainer"]


class IPUEngine(Engine):
    """An Ignite engine whose steps are device calls.

    It swaps the loaders it is given for PopTorch's, fires `IPUEvents`, and releases the device when an exception ends a
    run: the newest weights are on the host then.

    Args:
        process_function: The step.
        session: What it shares with the other engines over the model.
        loaders: Gives what makes PopTorch's loaders, once the options are known.

    Attributes:
        ipu: The session.
    """

    def __init__(self, process_function: Step, session: IPUSession, loaders: Callable[[], Loaders]) -> None:
        super().__init__(process_function)
        self.ipu = session
        self._loaders = loaders
        session.listen(self)
        self.add_event_handler(Events.EPOCH_STARTED, session.check_model)
        self.add_event_handler(Events.GET_BATCH_COMPLETED, self._own_batch)

    def run(self, data: Optional[Iterable[Any]] = None, *args: Any, **kwargs: Any) -> State:
        """Run as `Engine.run` does, over PopTorch's loader for `data`.

        Raises:
            LoaderError: The data is smaller than one device call, or empty.
        """
        return super().run(self._loaders().swap(data), *args, **kwargs)

    def set_data(self, data: Any) -> None:
        """Go on with other data, as `Engine.set_data` does."""
        super().set_data(self._loaders().swap(data))

    def _own_batch(self) -> None:
        # An asynchronous loader yields its own memory, which the next batch overwrites; handlers keep batches.
        if getattr(self.state.dataloader, "_accessor", None) is not None:
            self.state.batch = map_tensors(self.state.batch, torch.clone)

    def _handle_exception(self, e: BaseException) -> None:
        # Not an EXCEPTION_RAISED handler: with one attached, Ignite takes the exception for handled.
        self.ipu.release()
        self.fire_event(IPUEvents.RUN_FAILED)
        super()._handle_exception(e)


class IPUTrainer(IPUEngine):
    """The engine that `create_ipu_trainer` returns.

    Its state dictionary also holds the random states of host and device, so that a resumed run draws what the
    uninterrupted one does. Taking it at the end of an epoch pins the host's: the next epoch starts from it, whatever
    other handlers draw in between.

    Attributes:
        counts: Counts weight updates, micro-batches and samples into `state`, and fires `CountEvents`.
    """

    def __init__(self, process_function: Step, session: IPUSession, loaders: Callable[[], Loaders]) -> None:
        super().__init__(process_function, session, loaders)
        self._pinned: Optional[Tuple[int, Mapping[str, Any]]] = None
        self._loaded = False
        self._position = DataPosition()
        self.add_event_handler(Events.EPOCH_STARTED, self._restore_pinned)
        self.counts = Counts(lambda: None if session.training is None else session.training.geometry)
        self.counts.attach(self)

    def state_dict(self) -> OrderedDict[str, Any]:
        """Return Ignite's state dictionary with the random states as `ipu`."""
        state: OrderedDict[str, Any] = super().state_dict()
        iteration, length = self.state.iteration, self.state.epoch_length
        if self._pinned is None or self._pinned[0] != iteration or not length or iteration % length:
            self._pinned = iteration, read_random_states()
        now = self._pinned[1]
        device = self.ipu.random_state()
        state["ipu"] = {
            "host_random_state": now,
            "data": self._position.state_dict(),
            "device_random_state": None if device is None else torch.tensor(device, dtype=torch.int64),
            "counts": self.counts.state_dict(self),
        }
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned, or the one of an ordinary Ignite engine."""
        plain = {key: value for key, value in state_dict.items() if key != "ipu"}
        super().load_state_dict(plain)
        self._loaded = True
        saved = state_dict.get("ipu")
        if saved is None:
            # An ordinary engine makes one weight update from one batch in each iteration; samples it did not count.
            self.counts.load_state_dict(dict.fromkeys(("weight_updates", "micro_batches"), self.state.iteration))
            return
        self._pinned = self.state.iteration, saved["host_random_state"]
        length = self.state.epoch_length
        between_epochs = length is not None and self.state.iteration % length == 0
        self._position.load_state_dict(saved["data"], None if between_epochs else saved["host_random_state"])
        self.counts.load_state_dict(saved["counts"])
        if saved["device_random_state"] is not None:
            self.ipu.set_random_state(saved["device_random_state"].tolist())

    def run(self, data: Optional[Iterable[Any]] = None, *args: Any, **kwargs: Any) -> State:
        """Run as `IPUEngine.run` does, and tell the session about the data.

        A run that was loaded from its end stays ended, where Ignite would start another from the trained weights.
        """
        loaded, self._loaded = self._loaded, False
        if loaded and self._has_reached(*args, **kwargs):
            self.logger.info("The run that was loaded has reached its end already: nothing to do.")
            return self.state
        if data is not None:
            self.ipu.data = self._loaders().explain(data)
        return super().run(data, *args, **kwargs)

    def _has_reached(
        self, max_epochs: Optional[int] = None, max_iters: Optional[int] = None, *rest: Any, **kw: Any
    ) -> bool:
        state = self.state
        epochs = max_epochs if max_epochs is not None else state.max_epochs
        iterations = max_iters if max_iters is not None else getattr(state, "max_iters", None)
        if iterations is not None:
            return bool(state.iteration >= iterations)
        return bool(epochs and state.epoch_length and state.iteration >= epochs * state.epoch_length)

    def _setup_dataloader_iter(self) -> None:
        if self.state.dataloader is None:
            super()._setup_dataloader_iter()
        else:
            self._dataloader_iter = self._position.iterate(self.state.dataloader)

    def _restore_pinned(self) -> None:
        pinned, self._pinned = self._pinned, None
        if pinned is not None and self.state.epoch_length and self.state.iteration % self.state.epoch_length == 0:
            iteration, states = pinned
            if iteration == self.state.iteration:
                write_random_states(states)


class DeterministicIPUTrainer(IPUTrainer, DeterministicRuns):
    """The engine that `create_ipu_trainer(..., deterministic=True)` returns; see Ignite's `DeterministicEngine`."""

    _setup_dataloader_iter = DeterministicRuns._setup_dataloader_iter

    def _restore_pinned(self) -> None:
        # The engine seeds the host itself, at every start of the data.
        self._pinned = None
