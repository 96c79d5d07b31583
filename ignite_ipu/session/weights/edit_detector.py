"""`EditDetector`: finds the tensors of a model that code on the host has written."""

from __future__ import annotations

import itertools
import operator
from typing import Any, Callable, Container, Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import nn

from ignite_ipu.errors import LostEditError, listed
from ignite_ipu.program.tensors.raw import gradient_of
from ignite_ipu.program.tensors.sharing import address_of
from ignite_ipu.session.hooks import Edited, SessionHooks
from ignite_ipu.session.weights.access import AccessTracker, is_watched, unwatch_tensors, watch_tensors
from ignite_ipu.session.weights.host_copy import HostCopy
from ignite_ipu.session.weights.program_copies import ProgramCopies
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass, version_of


class EditDetector:
    """Finds writes into the host's copy of the weights, at every tensor only where one may have been written.

    Args:
        host: The host's copy.
        programs: The copies of the programs. Accesses to the tensors of a training program's model are seen by
            PopTorch's classes, those of other models by classes of our own.
        hooks: The session's.

    Attributes:
        tensors: The tensors of the host's copy.
        looks: How often `find` looked at every tensor.
        edits: How often the host's weights were found, or reported, to be set.
        in_graphs: Whether autograd has recorded functions of weights on the host, by which gradients may come later.
        accesses: The accesses to tensors since the last look, which all edits of a training program's model go
            through; None while nothing follows them.
        counts: How often each tensor was written.
        counted: The ids of the tensors of the last edit whose writes PyTorch has counted.
        host_steps: Whether an optimizer steps on the host, with parameters that are not watched: see `HostStep`.
    """

    def __init__(self, host: HostCopy, programs: ProgramCopies, hooks: SessionHooks) -> None:
        self._host, self._programs, self._hooks = host, programs, hooks
        self.tensors = host.held.tensors
        self.looks = self.edits = 0
        self.in_graphs = False
        self.counted: FrozenSet[int] = frozenset()
        self.accesses: Optional[AccessTracker] = None
        self._lost: List[str] = []
        # Of the steps on the host since the last look: the tensors that each held, and their gradients before it.
        self._steps: List[Tuple[Sequence[torch.Tensor], Sequence[Optional[torch.Tensor]]]] = []
        self.counts = WriteCounts(self.tensors)
        self.host_steps = False

    def watch_training(self) -> None:
        """Detect accesses to the tensors of a model that PopTorch has wrapped for training."""
        self.end()
        self.accesses = AccessTracker(
            self.tensors, self._note_first_access, self._hooks, is_written=self.counts.has_changed
        )

    def watch_evaluation(self) -> bool:
        """Detect accesses to tensors outside of training; return whether writes may have been missed so far."""
        tensors = self.tensors
        watch_tensors(tensors, buffers=True)
        if self.accesses is not None and self.accesses.watches(tensors):
            return False
        self.end()
        self.accesses = AccessTracker(
            tensors, self._note_first_access, self._hooks, on_host=True, is_written=self.counts.has_changed
        )
        return True

    def unwatch(self, always: bool = True) -> None:
        """Make parameters ordinary ones, for PopTorch to wrap or for further use on the host.

        `always` also with other watchers.
        """
        if self._programs.training is None:
            self.end()
            unwatch_tensors(self.tensors, always)

    def end(self) -> None:
        """Follow accesses no longer."""
        if self.accesses is not None:
            self.accesses.ended = True
            self.in_graphs |= self.accesses.in_graphs
        self.accesses = None

    def inherit(self, other: EditDetector) -> None:
        """Take over from the detector of an ended session whether gradients of the host may come later."""
        self.in_graphs |= other.in_graphs

    def find(self) -> Optional[Edited]:
        """Return the tensors that were written since the last time, with their values before, if kept.

        Looks at every tensor, and marks the current values as seen. The sequence is empty if tensors that nothing
        followed may have been written, and None if no tensor was. The tensors of a step on the host count as written.

        Raises:
            LostEditError: A write went into memory that the newest weights have replaced.
        """
        self.looks += 1
        written, accesses, programs = self.counts.take(), self.accesses, self._programs
        stepped = self._take_stepped(written) if self._steps else {}
        edited = bool(written or stepped) or (accesses is not None and accesses.uncounted_write())
        found = self._edited(written, stepped) if edited else ()
        if accesses is not None:
            accesses.forget()
        if programs.training is None and not self.host_steps and (programs.inference or self._hooks.follower.records):
            edited |= self.watch_evaluation()
        if self._lost:
            names, self._lost = self._lost, []
            raise LostEditError(
                f"{listed(names)} of the model was written through memory that it shares, while the newest weights "
                "were on the device: the write is lost. Write into the parameter itself, or through a tensor of "
                "parameter.data."
            )
        return found if edited else None

    def note_step(self, held: Sequence[torch.Tensor], gradients: Sequence[Optional[torch.Tensor]]) -> None:
        """Note that a step on the host may have written the tensors that it holds, with their `gradients` before it.

        PyTorch does not count writes through `parameter.data`, by which many optimizers make their updates. So each
        tensor that has a gradient, or had one before, counts as written at the next look.
        """
        self._steps.append((held, gradients))
        if self.accesses is not None:
            self.accesses.any = True

    def is_blind(self) -> bool:
        """Return whether tensors are not watched, as new ones of the model, so that a write may be missed."""
        return self.accesses is None or not self.accesses.watches(self.tensors)

    def has_unsent(self) -> bool:
        """Return whether the host has weights that the training program lacks, without recording edits.

        For use during an access to a weight, whose write is still to come.
        """
        accesses = self.accesses
        if accesses is None or not accesses.any or self._lost:
            return self._programs.training_is_stale
        return self._programs.training_is_stale or self.counts.differ() or accesses.uncounted_write()

    def untouched_since(self, looks: int) -> bool:
        """Return whether no code had a tensor, to write into it or to set its gradient, since `looks` was a number.

        False also if accesses do not show it: without a training program, and where autograd has recorded weights.
        """
        accesses = self.accesses
        if accesses is None or self._programs.training is None or self.looks != looks:
            return False
        return not (accesses.any or accesses.in_graphs or self.in_graphs)

    def keep(self, tensors: Sequence[torch.Tensor]) -> None:
        """Keep the values of tensors that are about to be written, for followers of edits."""
        accesses = self.accesses
        if accesses is not None:
            for tensor in tensors:
                accesses.keep(tensor)
            accesses.any = True  # a look since the access has forgotten it

    def _take_stepped(self, written: Mapping[int, bool]) -> Dict[int, torch.Tensor]:
        """Return by `id` the tensors that steps on the host may have written without a count."""
        steps, self._steps = self._steps, []
        known = set(map(id, self.tensors)).difference([id(self.tensors[position]) for position in written])
        if not known:
            return {}
        pairs = [pair for step in steps for pair in zip(*step) if id(pair[0]) in known]
        with DisableTorchFunctionSubclass():
            return {id(each): each for each, before in pairs if before is not None or gradient_of(each) is not None}

    def _edited(self, written: Mapping[int, bool], stepped: Mapping[int, torch.Tensor]) -> Edited:
        tensors, accesses = self.tensors, self.accesses
        self.counted = frozenset([id(tensors[position]) for position, is_counted in written.items() if is_counted])
        found = {id(tensor): tensor for tensor in [tensors[position] for position in written]}
        found.update(stepped)
        if accesses is None:
            return [(tensor, None) for tensor in found.values()]
        found.update({id(tensor): tensor for tensor in accesses.written_uncounted()})
        return accesses.with_values_before(found.values())

    def _note_first_access(self, brings: bool) -> None:
        """Detect writes without an access now: an access downloads, and so overwrites them."""
        host = self._host
        if host.is_stale:
            self._lost += [host.held.names[position] for position in self.counts.written()]
            if brings:
                host.download()  # PopTorch would do so by itself, without retries


class WriteCounts:
    """The writes to tensors that PyTorch had counted at a time, for comparisons with later ones.

    Args:
        tensors: The tensors, a list that may grow; `include` counts its new ones.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = tensors
        self._positions: Dict[int, int] = {}
        self._seen = self.now(tensors)

    def now(self, tensors: Sequence[torch.Tensor]) -> Tuple[List[int], List[int]]:
        """Return the writes to tensors so far, and their addresses: `tensor.data = other` is no write."""
        with DisableTorchFunctionSubclass():
            return list(map(version_of, tensors)), list(map(torch.Tensor.data_ptr, tensors))

    def include(self, new: Sequence[torch.Tensor]) -> None:
        """Include tensors that were added to the list."""
        for seen, now in zip(self._seen, self.now(new)):
            seen += now

    def mark_seen(self) -> None:
        """Mark the current values as seen, so that their writes do not count."""
        self._seen = self.now(self._tensors)

    def mark_restored(self, memories: Container[int]) -> None:
        """Mark the current values of the tensors at some addresses as seen: they are the same as before."""
        for position, tensor in enumerate(self._tensors):
            if address_of(tensor) in memories:
                for seen, (now,) in zip(self._seen, self.now([tensor])):
                    seen[position] = now

    def differ(self, positions: Optional[Sequence[int]] = None) -> bool:
        """Return whether a tensor, or one of those at some positions, was written since."""
        if positions is None:
            return self.now(self._tensors) != self._seen
        seen = tuple([side[position] for position in positions] for side in self._seen)
        return self.now([self._tensors[position] for position in positions]) != seen

    def has_changed(self, tensor: torch.Tensor) -> bool:
        """Return whether one of the tensors was written since; False for any other tensor."""
        if len(self._positions) != len(self._tensors):
            self._positions = {id(each): position for position, each in enumerate(self._tensors)}
        position = self._positions.get(id(tensor))
        return position is not None and self.differ([position])

    def written(self) -> Dict[int, bool]:
        """Return the positions of tensors that were written since, with whether not only their address has changed."""
        return _differing(self._seen, self.now(self._tensors))

    def take(self) -> Dict[int, bool]:
        """Return the same, and mark the current values as seen."""
        before, self._seen = self._seen, self.now(self._tensors)
        return _differing(before, self._seen)


def _differing(before: Tuple[List[int], List[int]], now: Tuple[List[int], List[int]]) -> Dict[int, bool]:
    moved, counted = [
        itertools.compress(itertools.count(), map(operator.ne, *pair)) for pair in zip(reversed(before), reversed(now))
    ]
    return {**dict.fromkeys(moved, False), **dict.fromkeys(counted, True)}


class HostStep:
    """Context of an optimizer's step on the host, in which parameters have PyTorch's own class.

    PyTorch updates them all at once then. Nothing follows their writes, so the detector looks at every tensor next.

    Args:
        detector: The detector of the parameters.
        held: The tensors that the step may write.
    """

    def __init__(self, detector: EditDetector, held: Sequence[torch.Tensor] = ()) -> None:
        self._detector, self._held = detector, held
        self._watched: List[Tuple[torch.Tensor, Any]] = []
        self._gradients: List[Optional[torch.Tensor]] = []

    def __enter__(self) -> HostStep:
        self._detector.host_steps = True
        with DisableTorchFunctionSubclass():
            self._gradients = list(map(gradient_of, self._held))
        # A closure may change the classes.
        tensors = self._detector.tensors
        kinds = {kind for kind in set(map(type, tensors)) if is_watched(kind) and issubclass(kind, nn.Parameter)}
        self._watched = [(tensor, type(tensor)) for tensor in tensors if type(tensor) in kinds]
        for tensor, _ in self._watched:
            object.__setattr__(tensor, "__class__", nn.Parameter)
        return self

    def __exit__(self, *error: Any) -> None:
        self._detector.host_steps = False
        for tensor, tensor_class in self._watched:
            tensor.__class__ = tensor_class
        if self._held:
            self._detector.note_step(self._held, self._gradients)
            self._gradients = []

    def as_before(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Return a closure of the step, in which parameters are watched."""

        def call() -> Any:
            self.__exit__()
            try:
                return closure()
            finally:
                self.__enter__()

        return call
