"""Slots of a schedule: a million of them in two lists of numbers, read one by one."""

from __future__ import annotations

from typing import Iterator, List, NamedTuple, Sequence, Tuple, Union, overload


class Slot(NamedTuple):
    """One span of one IPU's time: `kind` is "F" for forward, "B" for backward and recomputation, "U" for the update."""

    ipu: int
    stage: int
    kind: str
    micro_batch: int
    start: float
    end: float


class Slots(Sequence[Slot]):
    """The slots of a call, made when they are read: as objects they would take most of a simulation's time.

    Args:
        forward: Time of each stage's forward pass.
        backward: Time of each stage's backward pass; empty at inference.
        ipus: The IPU of each stage.
    """

    def __init__(self, forward: Sequence[float], backward: Sequence[float], ipus: Sequence[int]) -> None:
        kinds: List[Tuple[str, Sequence[float]]] = [("F", forward), ("B", backward or [0.0] * len(forward))]
        # What a pass of one stage is: found by its place in this list.
        self._passes = [(ipu, stage, kind, times[stage]) for stage, ipu in enumerate(ipus) for kind, times in kinds]
        self._keys: List[int] = []
        self._starts: List[float] = []
        self._updates: List[Tuple[int, float, float]] = []
        self._iterations, self._span, self._micro_batches = 1, 0.0, 0

    def add(self, stage: int, backward: bool, micro_batch: int, start: float) -> None:
        """Note a pass."""
        self._keys.append(micro_batch * len(self._passes) + 2 * stage + backward)
        self._starts.append(start)

    def repeat(self, iterations: int, span: float, micro_batches: int, update: float) -> None:
        """Repeat the `micro_batches` noted after every `span`, at whose end the weight update takes `update`."""
        self._iterations, self._span, self._micro_batches = iterations, span, micro_batches
        if update:
            ipus = 1 + max(ipu for ipu, *_ in self._passes)
            self._updates = [(ipu, span - update, span) for ipu in range(ipus)]

    def __len__(self) -> int:
        return self._iterations * (len(self._keys) + len(self._updates))

    @overload
    def __getitem__(self, index: int) -> Slot: ...

    @overload
    def __getitem__(self, index: slice) -> Tuple[Slot, ...]: ...

    def __getitem__(self, index: Union[int, slice]) -> Union[Slot, Tuple[Slot, ...]]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        if not -len(self) <= index < len(self):
            raise IndexError(f"There are {len(self)} slots, and {index} is none of them.")
        iteration, place = divmod(index % len(self), len(self._keys) + len(self._updates))
        if place < len(self._keys):
            return self._made(iteration, self._keys[place], self._starts[place])
        return self._update(iteration, *self._updates[place - len(self._keys)])

    def __iter__(self) -> Iterator[Slot]:
        for iteration in range(self._iterations):
            for key, start in zip(self._keys, self._starts):
                yield self._made(iteration, key, start)
            for update in self._updates:
                yield self._update(iteration, *update)

    def _made(self, iteration: int, key: int, start: float) -> Slot:
        micro_batch, number = divmod(key, len(self._passes))
        ipu, stage, kind, time = self._passes[number]
        shift = iteration * self._span
        earlier = iteration * self._micro_batches
        return Slot(ipu, stage, kind, micro_batch + earlier, start + shift, start + time + shift)

    def _update(self, iteration: int, ipu: int, start: float, end: float) -> Slot:
        shift = iteration * self._span
        return Slot(ipu, ipu, "U", iteration * self._micro_batches, start + shift, end + shift)
