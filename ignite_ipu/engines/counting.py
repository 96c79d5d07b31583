"""Counts of the weight updates, micro-batches and samples that an engine has had so far, and events for each.

One iteration is one device call, which makes several weight updates and consumes many micro-batches. A schedule that
was written per optimizer step or per batch of a GPU script keeps its length when it is attached to its unit's event::

    trainer.add_event_handler(CountEvents.WEIGHT_UPDATE_COMPLETED, scheduler)
    trainer.add_event_handler(CountEvents.SAMPLES_COMPLETED(every=100_000), evaluate)
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Union

from ignite.engine import Engine, EventEnum, Events

from ignite_ipu.program.geometry import BatchGeometry


class CountEvents(EventEnum):
    """Events in units smaller than an iteration. All those of one device call fire after it, in order.

    - WEIGHT_UPDATE_COMPLETED: once for every weight update; `state.weight_updates` counts along.
    - MICRO_BATCH_COMPLETED: once for every micro-batch of the inputs; `state.micro_batches` counts along.
    - SAMPLES_COMPLETED: once for every device call; with `every=N`, if `state.samples` has passed a multiple of N in
      the call.

    The unit of whole device calls is Ignite's own `Events.ITERATION_COMPLETED`.
    """

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
    """

    def __init__(self, geometry: Callable[[], Union[BatchGeometry, Sequence[BatchGeometry], None]]) -> None:
        self._geometry = geometry
        # Counts at iteration 0. They are not zero after a resume with another geometry than before.
        self._start: Dict[str, int] = {}
        self._loaded: Optional[Mapping[str, int]] = None
        # The arithmetic of the last iteration, and what it counts.
        self._known: Any = None
        self._each = [0, 0, 0]

    def attach(self, engine: Engine) -> None:
        """Count from this engine's iterations."""
        engine.register_events(
            *CountEvents,
            event_to_attr={
                CountEvents.WEIGHT_UPDATE_COMPLETED: "weight_updates",
                CountEvents.MICRO_BATCH_COMPLETED: "micro_batches",
                CountEvents.SAMPLES_COMPLETED: "samples",
            },
        )
        for name in _UNITS:
            if not hasattr(engine.state, name):
                setattr(engine.state, name, 0)
        engine.add_event_handler(Events.STARTED, self._begin)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._count)

    def state_dict(self, engine: Engine) -> Dict[str, int]:
        """Return the counts."""
        return {name: int(getattr(engine.state, name)) for name in _UNITS}

    def load_state_dict(self, counts: Mapping[str, int]) -> None:
        """Go on from these counts with the next run."""
        self._loaded = dict(counts)

    def _begin(self, engine: Engine) -> None:
        if self._loaded is not None:
            for name in _UNITS:
                setattr(engine.state, name, self._loaded.get(name, 0))
            self._loaded = None
        elif engine.state.iteration == 0:
            for name in _UNITS:
                setattr(engine.state, name, 0)

    def _count(self, engine: Engine) -> None:
        geometry = self._geometry()
        if geometry is None:
            return
        if geometry is not self._known:
            calls = [geometry] if isinstance(geometry, BatchGeometry) else geometry
            sums = [sum(getattr(call, name) for call in calls) for name in _OF_A_CALL]
            self._known, self._each = geometry, sums
        state: Any = engine.state
        updates, micro_batches, state.samples_per_call = self._each
        state.samples += state.samples_per_call
        # Handlers of the iteration that come later ask for the last event, to know which step they are at.
        last = engine.last_event_name
        _fire_each(engine, CountEvents.WEIGHT_UPDATE_COMPLETED, "weight_updates", updates)
        _fire_each(engine, CountEvents.MICRO_BATCH_COMPLETED, "micro_batches", micro_batches)
        if engine._event_handlers.get(CountEvents.SAMPLES_COMPLETED):
            engine.fire_event(CountEvents.SAMPLES_COMPLETED)
        engine.last_event_name = last


_UNITS = ("weight_updates", "micro_batches", "samples")
_OF_A_CALL = ("updates_per_call", "input_micro_batches", "global_batch_size")


def _fire_each(engine: Engine, event: CountEvents, name: str, times: int) -> None:
    before = getattr(engine.state, name)
    if engine._event_handlers.get(event):
        for count in range(before + 1, before + times + 1):
            setattr(engine.state, name, count)
            engine.fire_event(event)
    setattr(engine.state, name, before + times)


def _passes_multiple(every: int) -> Callable[[Engine, int], bool]:
    def passes(engine: Engine, samples: int) -> bool:
        state: Any = engine.state
        return bool(samples // every > (samples - state.samples_per_call) // every)

    return passes
