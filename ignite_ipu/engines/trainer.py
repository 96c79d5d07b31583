"""`IPUTrainer`: the engine that trains, whose interrupted runs can be resumed."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from ignite.engine import Events, State
from torch.utils.data import DataLoader, IterableDataset

from ignite_ipu.checkpoints.comparable import comparable, restored
from ignite_ipu.checkpoints.writing import copied
from ignite_ipu.engines.counting import Counts
from ignite_ipu.engines.engine import IPUEngine
from ignite_ipu.engines.loaders import Loaders
from ignite_ipu.engines.rates import LearningRates, planned_rates
from ignite_ipu.engines.resume.accumulations import Accumulations, plain_values
from ignite_ipu.engines.resume.pinned_states import PinnedStates
from ignite_ipu.engines.resume.position import DataPosition, is_between_epochs
from ignite_ipu.engines.resume.starting import RunStarts, Start
from ignite_ipu.engines.schedulers import scheduled_names
from ignite_ipu.engines.steps import IPUStep
from ignite_ipu.optimizers.host_link import note_earlier_steps
from ignite_ipu.program.geometry import BatchGeometry
from ignite_ipu.program.refusal_frames import brief_refusals
from ignite_ipu.session.program import ModelProgram
from ignite_ipu.session.session import IPUSession


class IPUTrainer(IPUEngine):
    """The engine that `create_ipu_trainer` returns.

    Its state dictionary also holds the random states of host and device, so that a resumed run draws the same numbers
    as an uninterrupted one. Taking it at the end of an epoch pins the host's, including that of the loader's own
    generator. The next epoch starts from it, also if other handlers draw in between, which a warning reports. It holds
    the accumulated values of attached metrics, which a resumed run restores. It records whether the handlers of the
    epoch's end have run; if not, a resumed run calls them, with the same output. Between `load_state_dict` and the part
    of a run that restores a value, it holds the loaded value.

    Args:
        process_function, session, loaders: As for `IPUEngine`.
        calls: Gives the arithmetic of the last iteration's device calls; by default they are of the session's program.

    Attributes:
        counts: Counts weight updates, micro-batches and samples into `state`, and fires `CountEvents`.
        pins_random_states: Whether taking the state dictionary at the end of an epoch pins the host's random states.
        resumes: Whether the latest run began where a loaded state was taken.
    """

    pins_random_states = True

    def __init__(
        self,
        process_function: IPUStep,
        session: IPUSession,
        loaders: Callable[[], Loaders],
        calls: Optional[Callable[[], Sequence[BatchGeometry]]] = None,
    ) -> None:
        self._accumulations = Accumulations()
        super().__init__(process_function, session, loaders)
        self._pins, self._starts = PinnedStates(), RunStarts()
        self.resumes = False
        self._ended_epoch = 0
        self._position = DataPosition()
        self.add_event_handler(Events.STARTED, self._note_start)
        self.add_event_handler(Events.EPOCH_COMPLETED, self._note_end_of_epoch)
        self.add_event_handler(Events.EPOCH_STARTED, self._restore_pinned)

        def latest() -> Any:
            trained = session.trainers.current
            if session.calls.uneven is not None:
                return [session.calls.uneven]
            return calls() if calls is not None else None if trained is None else trained.program.state.geometry

        self.counts = Counts(latest, lambda: _coming_call(session, self._call), lambda: _rates(session))
        self.counts.attach(self)

    def add_event_handler(self, event_name: Any, handler: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Attach a handler as `Engine.add_event_handler` does; values of metrics are part of this engine's state."""
        self._accumulations.follow(self, event_name, handler, args)
        return super().add_event_handler(event_name, handler, *args, **kwargs)

    def state_dict(self) -> OrderedDict[str, Any]:
        """Return Ignite's state dictionary, with this engine's own state as `ipu`; both can be compared by `==`."""
        return _encoded(*self._states(self.ipu.random_state()))

    def state_image(self, device_random_state: Optional[List[int]]) -> Callable[[], OrderedDict[str, Any]]:
        """Return a function that returns the state dictionary of this moment, which is encoded only then.

        Args:
            device_random_state: That of the training program, which callers have read.
        """
        state, own = self._states(device_random_state)
        kept = copied(state)
        return lambda: _encoded(kept, own)

    def _states(self, device_random_state: Optional[List[int]]) -> Tuple[OrderedDict[str, Any], Dict[str, Any]]:
        """Return Ignite's state dictionary, and this engine's own state in values that are never written again."""
        state: OrderedDict[str, Any] = super().state_dict()
        host = self._position.loaded_random_states() or self._pins.read(self, self.pins_random_states)
        completed = not is_between_epochs(self) or self.state.iteration in (0, self._ended_epoch)
        own = {
            "host_random_state": host,
            "data": self._position.state_dict(),
            "device_random_state": device_random_state,
            "counts": self.counts.state_dict(self),
            "added_up": self._accumulations.state_dict(self.state.metrics),
            "epoch_completed": completed,
            "shown": {} if completed else plain_values({"output": self.state.output}),
        }
        return state, own

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a result of `state_dict`, or the state of an ordinary Ignite engine.

        Raises:
            TypeError, ValueError: It is none, as Ignite says.
        """
        given: Any = state_dict
        if not isinstance(given, Mapping):
            super().load_state_dict(given)  # which refuses it
        plain = {key: value for key, value in state_dict.items() if key != "ipu"}
        super().load_state_dict(plain)
        self._starts.loaded = True
        self._ended_epoch = self.state.iteration
        saved = restored(state_dict.get("ipu"))
        self._accumulations.expect({} if saved is None else saved.get("added_up", {}))
        if saved is None:
            # An ordinary engine makes one weight update from one batch in each iteration; samples it did not count.
            self.counts.load_state_dict(dict.fromkeys(("weight_updates", "micro_batches"), self.state.iteration))
            self._position.forget()
            self._pins.forget()
            return
        self._pins.load(self.state.iteration, saved["host_random_state"])
        if not saved.get("epoch_completed", True):
            self._ended_epoch = -1
            self.state.output = saved.get("shown", {}).get("output")
        self._position.load_state_dict(saved["data"], None if is_between_epochs(self) else saved["host_random_state"])
        self.counts.load_state_dict(saved["counts"])
        if saved["device_random_state"] is not None:
            self.ipu.set_random_state([int(each) for each in saved["device_random_state"]])

    @brief_refusals
    def run(self, data: Optional[Iterable[Any]] = None, *args: Any, **kwargs: Any) -> State:
        """Run as `IPUEngine.run` does, and hand the session the data.

        A run that was loaded from its end stays ended, where Ignite would start another from the trained weights. If it
        was saved before the handlers of its last epoch's end, these are called. An end that this engine had come to
        itself, which FastaiLRFinder restores, is none of a loaded run: as in Ignite, another begins. So it does after
        `state.max_epochs = None`, which is Ignite's way to begin anew.

        Raises:
            LoaderError: The data is smaller than one device call, or empty (a `ValueError`, too, as Ignite's).
            ValueError: `max_epochs` or `max_iters` lies before the epoch or iteration that was loaded.
        """
        start = self._starts.start(self, *args, **kwargs)
        if start is Start.REFUSED:
            return super().run(data, *args, **kwargs)  # Ignite raises, and explains how to begin anew
        self.resumes = start is not Start.OWN
        if start is Start.OWN:
            self._accumulations.expect(None)
            if self._starts.loaded:
                self._position.forget()
                self.counts.forget()
        elif not self.has_event_handler(self._resume, Events.STARTED):
            self.add_event_handler(Events.STARTED, self._resume)
        if start is Start.LOADED_END:
            self._starts.loaded = False
            return self._end_again()
        if data is not None:
            self._note_data(data)
        self._expect_schedules()
        returned: Any = super().run(data, *args, **kwargs)
        state: State = returned
        if returned is not None:  # Ignite's answer to the first run after an exception: it has put that one away.
            self._starts.note_end(state.iteration)
        return state

    def learning_rates(self, data: Iterable[Any], max_epochs: int = 1) -> LearningRates:
        """Return the learning rates that the attached schedulers will set, by iteration and by weight update.

        The result prints as a table, and its `draw()` returns a picture. Nothing is compiled or trained. Schedulers,
        optimizer and state are as before.

        Raises:
            LoaderError: The data has no length.
        """
        optimizer = self.ipu.trainers.required().link.conversion.source
        return planned_rates(self, optimizer, self._loaders().epoch(data), max_epochs)

    def explain(self, data: Iterable[Any], max_epochs: Optional[int] = None) -> str:
        """Return the text of `print(trainer.ipu)`, with the arithmetic of an epoch over `data`; nothing is compiled.

        With the first batch of a `DataLoader` a pipeline's memory is estimated, and "auto" plans. With a number of
        epochs, the table of `learning_rates` follows.

        Raises:
            PlanError: No plan fits, or the pipeline needs more than `memory_per_ipu`.
            LoaderError: The data is smaller than one device call.
        """
        self._note_data(data)
        program = self.ipu.training
        again = isinstance(data, DataLoader) and not isinstance(getattr(data, "dataset", None), IterableDataset)
        if again and program is not None and program.placing is not None:
            program.state.place(*self.prepared(self.one_batch(data)))
        if max_epochs is None:
            return repr(self.ipu)
        return f"{self.ipu!r}\n\n{self.learning_rates(data, max_epochs)}"

    def _compiled(self, batch: Any) -> ModelProgram:
        self._expect_schedules()
        return super()._compiled(batch)

    def _expect_schedules(self) -> None:
        """Make hyper-parameters of attached schedulers variable, zeros too, if the update is not compiled yet."""
        trained = self.ipu.trained
        if trained is not None and trained.program.compiled is None:
            trained.link.expect_changes(scheduled_names(self, trained.link.conversion.source))

    def _note_data(self, data: Iterable[Any]) -> None:
        trained = self.ipu.trained
        steps = None if trained is None else trained.resolved.geometry.gradient_accumulation
        self.ipu.data = self._loaders().explain(data, steps)

    def _note_start(self) -> None:
        self._starts.loaded = False
        if not self.state.iteration:
            self._ended_epoch = 0

    def _note_end_of_epoch(self) -> None:
        self._ended_epoch = self.state.iteration

    def _resume(self) -> None:
        """Restore the state that handlers of the start have reset. It is the last handler of STARTED."""
        self.remove_event_handler(self._resume, Events.STARTED)
        if not is_between_epochs(self):
            self.add_event_handler(Events.EPOCH_STARTED, self._resume_within_epoch)
            return
        self._accumulations.go_on(self)
        if self._ended_epoch != self.state.iteration:
            if self.ipu.link is not None:
                note_earlier_steps(self.ipu.link)
            self.fire_event(Events.EPOCH_COMPLETED)

    def _resume_within_epoch(self) -> None:
        self.remove_event_handler(self._resume_within_epoch, Events.EPOCH_STARTED)
        self._accumulations.go_on(self)

    def _end_again(self) -> State:
        """End a run that was loaded from its end, where handlers of the last epoch's end may not have been called."""
        if self._ended_epoch == self.state.iteration:
            self.logger.info("The run that was loaded has reached its end already: nothing to do.")
            self._accumulations.go_on(self)
            self._accumulations.show_stores(self)
            return self.state
        self.state.times.update({Events.EPOCH_COMPLETED.name: 0.0, Events.COMPLETED.name: 0.0})
        try:
            self.fire_event(Events.STARTED)  # `_resume` ends the epoch
            self.fire_event(Events.COMPLETED)
        except BaseException as error:
            self._handle_exception(error)
        return self.state

    def _setup_dataloader_iter(self) -> None:
        if self.state.dataloader is None:
            self._position.forget()
            super()._setup_dataloader_iter()
        else:
            self._dataloader_iter = self._position.iterate(self.state.dataloader)

    def _restore_pinned(self) -> None:
        self._pins.restore(self)


def _encoded(state: Mapping[str, Any], own: Mapping[str, Any]) -> OrderedDict[str, Any]:
    return OrderedDict(state, ipu=comparable(own))


def _coming_call(session: IPUSession, batches: Optional[Sequence[Any]]) -> Optional[BatchGeometry]:
    """Return the arithmetic of the next call, of some batches: of whole updates, but for the rest of the data."""
    if session.trained is None:
        return None
    resolved = session.trained.resolved
    whole = resolved.geometry
    if batches is None or len(batches) == resolved.micro_batches:
        return whole
    of_one = whole.gradient_accumulation * whole.input_slots
    updates = -(-len(batches) // of_one)
    return BatchGeometry(1, updates, -(-len(batches) // updates))


def _rates(session: IPUSession) -> List[float]:
    source = None if session.link is None else session.link.conversion.source
    return [] if source is None else [group["lr"] for group in source.param_groups]
