"""Counts of the weight updates, micro-batches and samples that an engine has had so far, and events for each.

One iteration is one device call, which makes several weight updates and consumes many micro-batches. A schedule of a
GPU script counts optimizer steps or batches. It keeps its length and its rates if it is attached to the event of the
same unit::

    trainer.add_event_handler(CountEvents.MICRO_BATCH_STARTED, scheduler)  # natively Events.ITERATION_STARTED
    trainer.add_event_handler(CountEvents.WEIGHT_UPDATE_COMPLETED, torch_scheduler.step)
    trainer.add_event_handler(CountEvents.SAMPLES_COMPLETED(every=100_000), evaluate)
"""

from __future__ import annotations

from typing import Any, Callable, Collection, Dict, List, Mapping, Optional, Sequence, Set, Union

from ignite.engine import Engine, EventEnum, Events

from ignite_ipu.errors import logger
from ignite_ipu.program.geometry import BatchGeometry, UnevenCall
from ignite_ipu.torch_names.engines import event_handlers_of


class CountEvents(EventEnum):
    """Events in units smaller than an iteration. Those of one device call fire before it or after it, in order.

    - WEIGHT_UPDATE_STARTED, MICRO_BATCH_STARTED: before the call, once for every weight update that it will make, and
      for every micro-batch. The counts go along, and are set back before the call.
    - WEIGHT_UPDATE_COMPLETED: once for every weight update; `state.weight_updates` counts along.
    - MICRO_BATCH_COMPLETED: once for every micro-batch of the inputs; `state.micro_batches` counts along.
    - SAMPLES_COMPLETED: once for every device call; with `every=N`, if `state.samples` has passed a multiple of N in
      the call.

    The unit of whole device calls is Ignite's own `Events.ITERATION_COMPLETED`.
    """

    WEIGHT_UPDATE_STARTED = "weight_update_started"
    MICRO_BATCH_STARTED = "micro_batch_started"
    WEIGHT_UPDATE_COMPLETED = "weight_update_completed"
    MICRO_BATCH_COMPLETED = "micro_batch_completed"
    SAMPLES_COMPLETED = "samples_completed"

    def __call__(
        self,
        event_filter: Optional[Callable[..., Any]] = None,
        every: Optional[int] = None,
        once: Any = None,
        before: Optional[int] = None,
        after: Optional[int] = None,
    ) -> Any:
        """Return the event with a filter, as Ignite's events do.

        Raises:
            ValueError: Both filters are given, or `every` is no positive integer.
        """
        event = super().__call__(event_filter, every, once, before, after)
        others = (event_filter, once, before, after)
        if self is not CountEvents.SAMPLES_COMPLETED or every is None or any(other is not None for other in others):
            return event
        return super().__call__(_passes_multiple(every))


class Counts:
    """Counts weight updates, micro-batches and samples into an engine's state and fires `CountEvents`.

    The trainers of this library have one. With a hand-written PopTorch loop in an Ignite engine, attach your own::

        Counts(lambda: BatchGeometry.from_options(options, micro_batch_size)).attach(trainer)

    Args:
        geometry: Gives the arithmetic of the device call of an iteration, or of its calls; None as long as it is not
            known.
        coming: Gives that of the call that comes next, for the events before it; as `geometry` if None.
        rates: Returns the current learning rates; one call has one of each group.
    """

    def __init__(
        self,
        geometry: Callable[[], Union[BatchGeometry, Sequence[Union[BatchGeometry, UnevenCall]], None]],
        coming: Optional[Callable[[], Optional[BatchGeometry]]] = None,
        rates: Callable[[], Sequence[Any]] = tuple,
    ) -> None:
        self._geometry, self._coming, self._rates = geometry, coming or geometry, rates
        self._warned_of_rates = False
        self._loaded: Optional[Mapping[str, int]] = None
        # The arithmetic of the last iteration, and its counts.
        self._known: Any = None
        self._each = [0, 0, 0]
        # The number of the engine's events with handlers, when none was in smaller units; Ignite forgets no event.
        self._without = -1

    def attach(self, engine: Engine) -> None:
        """Count from this engine's iterations."""
        engine.register_events(
            *CountEvents,
            event_to_attr={
                CountEvents.WEIGHT_UPDATE_STARTED: "weight_updates",
                CountEvents.MICRO_BATCH_STARTED: "micro_batches",
                CountEvents.WEIGHT_UPDATE_COMPLETED: "weight_updates",
                CountEvents.MICRO_BATCH_COMPLETED: "micro_batches",
                CountEvents.SAMPLES_COMPLETED: "samples",
            },
        )
        for name in _UNITS:
            if not hasattr(engine.state, name):
                setattr(engine.state, name, 0)
        engine.add_event_handler(Events.STARTED, self._begin)
        engine.add_event_handler(Events.ITERATION_STARTED, self._announce)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._count)

    def state_dict(self, engine: Engine) -> Dict[str, int]:
        """Return the counts; those that were loaded until the next run goes on from them."""
        counts = vars(engine.state) if self._loaded is None else self._loaded
        return {name: int(counts.get(name, 0)) for name in _UNITS}

    def load_state_dict(self, counts: Mapping[str, int]) -> None:
        """Go on from these counts with the next run."""
        self._loaded = dict(counts)

    def forget(self) -> None:
        """Go on from the engine's own counts, not from loaded ones."""
        self._loaded = None

    def _begin(self, engine: Engine) -> None:
        if self._loaded is not None:
            for name in _UNITS:
                setattr(engine.state, name, self._loaded.get(name, 0))
            self._loaded = None
        elif engine.state.iteration == 0:
            for name in _UNITS:
                setattr(engine.state, name, 0)

    def _announce(self, engine: Engine) -> None:
        handlers = event_handlers_of(engine)
        if len(handlers) == self._without or _STARTED.isdisjoint(self._handled(handlers)):
            return
        updates, micro_batches, _ = _sums(self._coming())
        state: Any = engine.state
        before, last = (state.weight_updates, state.micro_batches), engine.last_event_name
        used = set()
        for update in range(1, updates + 1):
            state.weight_updates = before[0] + update
            engine.fire_event(CountEvents.WEIGHT_UPDATE_STARTED)
            for number in range((update - 1) * micro_batches // updates, update * micro_batches // updates):
                state.micro_batches = before[1] + number + 1
                engine.fire_event(CountEvents.MICRO_BATCH_STARTED)
            used.add(tuple(self._rates()))
        (state.weight_updates, state.micro_batches), engine.last_event_name = before, last
        self._tell_of_rates(used, updates)

    def _tell_of_rates(self, used: Collection[Any], updates: int) -> None:
        if len(used) > 1 and not self._warned_of_rates:
            self._warned_of_rates = True
            logger.warning(
                "The %d weight updates of one device call have one learning rate, and a schedule sets another one for "
                "each of them: all have the last. Use device_iterations=1 where each update needs its own rate.",
                updates,
            )

    def _count(self, engine: Engine) -> None:
        geometry = self._geometry()
        if geometry is None:
            return
        if geometry is not self._known:
            self._known, self._each = geometry, _sums(geometry)
        state: Any = engine.state
        updates, micro_batches, state.samples_per_call = self._each
        state.samples += state.samples_per_call
        handlers = event_handlers_of(engine)
        if len(handlers) == self._without or not self._handled(handlers):
            state.weight_updates += updates
            state.micro_batches += micro_batches
            return
        # Later handlers of the iteration read the last event, to find their step.
        last = engine.last_event_name
        self._tell_of_rates(
            _fire_each(engine, CountEvents.WEIGHT_UPDATE_COMPLETED, "weight_updates", updates, self._rates), updates
        )
        _fire_each(engine, CountEvents.MICRO_BATCH_COMPLETED, "micro_batches", micro_batches)
        if event_handlers_of(engine).get(CountEvents.SAMPLES_COMPLETED):
            engine.fire_event(CountEvents.SAMPLES_COMPLETED)
        engine.last_event_name = last

    def _handled(self, handlers: Mapping[Any, Sequence[Any]]) -> List[Any]:
        """Return the events in smaller units, with filters or without, that have handlers; most engines have none."""
        # Ignite's own first: the hash of an event is computed in Python.
        known = [event for event in handlers if type(event) is not Events and event in _COUNTED]
        self._without = -1 if known else len(handlers)
        return [event for event in known if handlers[event]]


_STARTED = frozenset([CountEvents.WEIGHT_UPDATE_STARTED, CountEvents.MICRO_BATCH_STARTED])
_COUNTED = frozenset(CountEvents)
_UNITS = ("weight_updates", "micro_batches", "samples")
_OF_A_CALL = ("updates_per_call", "input_micro_batches", "global_batch_size")


def _sums(geometry: Union[BatchGeometry, Sequence[Union[BatchGeometry, UnevenCall]], None]) -> List[int]:
    """Return how many updates, micro-batches and samples device calls have together."""
    calls = [geometry] if isinstance(geometry, BatchGeometry) else geometry or ()
    return [sum(getattr(call, name) for call in calls) for name in _OF_A_CALL]


def _fire_each(
    engine: Engine, event: CountEvents, name: str, times: int, rates: Callable[[], Sequence[Any]] = tuple
) -> Set[Any]:
    """Fire an event so many times, and return the different learning rates after each."""
    before, found = getattr(engine.state, name), set()
    if event_handlers_of(engine).get(event):
        for count in range(before + 1, before + times + 1):
            setattr(engine.state, name, count)
            engine.fire_event(event)
            found.add(tuple(rates()))
    setattr(engine.state, name, before + times)
    return found


def _passes_multiple(every: int) -> Callable[[Engine, int], bool]:
    def passes(engine: Engine, samples: int) -> bool:
        state: Any = engine.state
        return bool(samples // every > (samples - state.samples_per_call) // every)

    return passes
