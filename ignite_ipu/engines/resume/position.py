"""Position of an engine in its data, so that a resumed run goes on with the batch that would have come next.

Ignite starts the data anew when a run resumes in the middle of an epoch. Here the pass over the data starts with its
original random states, the used batches are drawn and dropped, and then the states of the interruption are set.

As in Ignite's `DeterministicEngine`, loaders of deterministic engines have a batch sampler that can be rewound.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Mapping, Optional

from ignite.engine import Engine

from ignite_ipu.checkpoints.comparable import comparable
from ignite_ipu.checkpoints.random_states import read_random_states, write_random_states


class DataPosition:
    """Counts the batches drawn in one pass over the data."""

    def __init__(self) -> None:
        self.drawn = 0
        self._started: Optional[Dict[str, Any]] = None
        self._wanted: Optional[Mapping[str, Any]] = None
        self._afterwards: Optional[Mapping[str, Any]] = None

    def state_dict(self) -> Dict[str, Any]:
        """Return how the pass began and how far it has come; a loaded position until the next pass begins."""
        return {"started": self._started, "drawn": self.drawn} if self._wanted is None else dict(self._wanted)

    def load_state_dict(self, state: Mapping[str, Any], afterwards: Optional[Mapping[str, Any]]) -> None:
        """Begin the next pass where `state` was taken, and set the random states of `afterwards` then, if given."""
        self._wanted, self._afterwards = state, afterwards

    def loaded_random_states(self) -> Optional[Mapping[str, Any]]:
        """Return the host's random states that were loaded, until the next pass sets them; else None."""
        return self._afterwards

    def forget(self) -> None:
        """Begin the next pass at the data's start, not at a loaded position."""
        self._wanted = self._afterwards = None

    def iterate(self, data: Any) -> Iterator[Any]:
        """Return an iterator over one pass, or over the rest of the one that was loaded."""
        generator = getattr(data, "generator", None)
        wanted, loaded_states = self._wanted, self._afterwards
        self.forget()
        if wanted is None or wanted["started"] is None:
            return self._begin(data)
        drawn = int(wanted["drawn"])
        if generator is None and drawn >= _length(data, drawn + 1):
            # The pass was over; starting the next one is the engine's business. Samplers draw from a generator of the
            # loader's at the end of a pass, too: then it is gone through as one that was not over.
            self._started, self.drawn = dict(wanted["started"]), drawn
            if loaded_states is not None:
                write_random_states(loaded_states)
            return iter(())
        afterwards = loaded_states or read_random_states()
        write_random_states(wanted["started"], generator)
        batches = self._begin(data)
        for _ in range(drawn):
            next(batches, None)
        write_random_states(afterwards, generator)
        return batches

    def rewind_generator(self, data: Any, over: bool) -> None:
        """Have a loader's own generator where the pass that was loaded began, for an engine that seeds the host itself.

        If that pass was `over`, where the next one begins.
        """
        generator, wanted = getattr(data, "generator", None), self._wanted
        self.forget()
        if generator is not None and wanted is not None and wanted["started"] is not None:
            generator.set_state(wanted["started"]["generator"])
            if over:
                for _ in data:  # samplers draw at the end of a pass, too
                    pass
        self.note_generator(data)

    def note_generator(self, data: Any) -> None:
        """Note where a loader's own generator is, at the start of a pass that an engine makes itself."""
        generator = getattr(data, "generator", None)
        self._started = None if generator is None else comparable(read_random_states(generator))

    def _begin(self, data: Any) -> Iterator[Any]:
        # Encoded once, however often it is saved.
        self._started = comparable(read_random_states(getattr(data, "generator", None)))
        self.drawn = 0
        return self._counted(iter(data))

    def _counted(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            self.drawn += 1
            yield batch


def is_between_epochs(engine: Engine) -> bool:
    """Return whether an engine is at the end of an epoch, or at the start."""
    length = engine.state.epoch_length
    return length is not None and engine.state.iteration % length == 0


def _length(data: Any, otherwise: int) -> int:
    try:
        return len(data)
    except TypeError:
        return otherwise


class RewindableSampler:
    """A batch sampler that can leave out the batches that were used before a resume."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self._skip = 0
        self._drawn: Optional[List[Any]] = None

    def rewind(self, skip: int) -> None:
        """Leave out this many batches of the epoch that starts next."""
        self._skip = skip

    def draw(self) -> None:
        """Draw the batches of the epoch that starts next, unless it has started."""
        if self._skip:
            self._drawn = list(self._sampler)

    def __iter__(self) -> Iterator[Any]:
        indices = list(self._sampler) if self._drawn is None else self._drawn
        skip, self._skip, self._drawn = self._skip, 0, None
        yield from indices[skip:]

    def __len__(self) -> int:
        return len(self._sampler)
