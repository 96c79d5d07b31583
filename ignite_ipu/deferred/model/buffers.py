"""The book of buffers: each written buffer has the host's value, the device's, or that of a pending call.

PyTorch writes buffers in forward, such as the statistics of batch normalisation. A captured call in training mode
writes them with the update that it is part of, and is pending until then. Every read of a buffer settles the pending
calls first: they are replayed on the host, in their order. The update of a replayed call begins with the buffers that
the call began with, so that nothing is written twice.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Any, Callable, Container, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

import torch
from torch import nn

from ignite_ipu.deferred.compiled.statistics import refuse_later_statistics
from ignite_ipu.deferred.graph.operations import CLOCK, USES, Contents, Operation, by_number
from ignite_ipu.deferred.graph.owners import CapturedLoop
from ignite_ipu.deferred.graph.state import model_of, read_buffers, written_ids
from ignite_ipu.deferred.graph.step_graph import Loss
from ignite_ipu.deferred.graph.uses import keep_buffers_read
from ignite_ipu.deferred.model.buffer_order import (
    are_written_around,
    comes_between,
    is_read_before,
    may_wait,
    refuse_edits_between,
)
from ignite_ipu.deferred.model.call_replays import CallReplays, Replay, before_replay, chain_of, is_awaited, nothing
from ignite_ipu.deferred.model.edits import WeightEdits
from ignite_ipu.deferred.model.evaluations import EvaluationBook
from ignite_ipu.deferred.model.shared_buffers import SharedBuffers
from ignite_ipu.deferred.model.waiting import ALL, settle_sharing
from ignite_ipu.errors import CaptureError, EarlyReadError, listed
from ignite_ipu.program.forward.eager import EAGER
from ignite_ipu.program.module_state import REGISTRATIONS
from ignite_ipu.program.tensors.raw import plain
from ignite_ipu.program.user_code import Line, current_line
from ignite_ipu.session.hooks import Edited
from ignite_ipu.session.weights.tracker import Weights


class _Evaluation(NamedTuple):
    """Evaluations in a row, numbered as operations: by `id` the buffers that they wrote, with values from before."""

    number: int
    before: Dict[int, Tuple[torch.Tensor, torch.Tensor]]


BOOKS: weakref.WeakSet[BufferBook] = weakref.WeakSet()
"""Books with waiting calls that get results of models trained apart; some of these calls may have been made since."""


class BufferBook:
    """The buffers of captured models that are trained together, and the calls that have yet to write them.

    Attributes:
        waiting: Calls by number that no update has made yet, replayed or not.
        replays: Those of them that were replayed: the host has the values of the buffers that they write.
        taken: Replays of the last update's calls, which it began without.
        shared: The buffers that several of the models have.
        weights: The places of the models' weights and buffers.
    """

    def __init__(self, edits: WeightEdits, unknown: EvaluationBook, weights: Weights) -> None:
        self._edits, self._unknown, self.weights = edits, unknown, weights
        self._calls = CallReplays(edits, weights)
        self.waiting: Dict[int, Operation] = {}
        self.replays: Dict[int, Replay] = {}
        self.shared = SharedBuffers(self.waiting, self.replays)
        self.taken: Dict[int, Replay] = {}
        # Calls on the host that the next update leaves out: replayed ones, and those that raised an error.
        self._left: Dict[int, Tuple[Operation, Replay]] = {}
        self._evaluations: List[_Evaluation] = []  # those that have written buffers since the last update
        self._passed: Set[int] = set()  # those that have waited while another optimizer stepped
        self._is_settling = False
        REGISTRATIONS.observe(self)
        ALL.add(self)

    def record(self, call: Operation, new: bool = False) -> None:
        """Note a call that will write buffers, which is `new` or goes on waiting."""
        if new and USES:
            keep_buffers_read(call, written_ids(call))
        if call.value_leaves and _borrows(self, call):
            BOOKS.add(self)
        self.waiting[call.number] = call
        if not self.shared.has_writers:
            self.shared.note_writer()

    def merge(self, other: BufferBook) -> None:
        """Move the calls of models here that are trained together with these from now on."""
        for call in other.waiting.values():
            self.record(call)
        self.replays.update(other.replays)
        self._passed |= other._passed
        self._evaluations = sorted([*self._evaluations, *other._evaluations], key=lambda each: each.number)
        self.shared.merge(other.shared)
        for moved in (other.waiting, other.replays, other._passed, other._evaluations):
            moved.clear()

    def before_read(self) -> None:
        """Replay the pending calls before a buffer is read.

        Raises:
            EarlyReadError: One of them cannot be replayed on the host.
        """
        if self._is_settling or EAGER.is_on:
            return
        settle_sharing(self)
        if not self.waiting:
            return
        problem = self.settle(self.pending())
        if problem is not None:
            first = _writes(self.pending()[0])
            raise EarlyReadError(
                f"A buffer is read at {current_line()}, and {first} with the update that it is part of. The "
                f"host cannot replay the call: {problem}. Read buffers after optimizer.step()."
            )

    def before_weights_change(self) -> None:
        """Replay the pending calls that can be replayed; the others cannot be replayed any more."""
        if self.waiting:
            self.settle(self.pending())
            self._passed |= {call.number for call in self.pending()}
        _settle_others(self)

    def after_edits(self, edited: Edited) -> None:
        """Settle the pending calls with the weights from before writes that were found, where these were kept.

        All of these calls are older than the writes: each call looks for writes first.
        """
        calls = [] if self._is_settling else self.pending()
        if not (calls or BOOKS):
            return
        kept = all(before is not None for _, before in edited)
        with self.weights.with_others(edited) if kept else contextlib.nullcontext():
            if kept:
                self.settle(calls, older=True)
            _settle_others(self, kept=kept)

    def before_registration(self, module: nn.Module, given: Any) -> None:
        """Replay the pending calls that can be replayed, before a module of theirs gets other tensors or modules."""
        if not self.waiting or self._is_settling or EAGER.is_on:
            return
        models = [call.model for call in self.waiting.values() if call.model is not None]
        if any(module in set(model.model.modules()) for model in models):
            self.settle(self.pending())

    def before_evaluation(self, name: str, call: Optional[Operation] = None) -> None:
        """Replay the pending calls, or refuse the evaluation: PyTorch evaluates with the buffers that they write.

        If it is of a `call` that was recorded, those are replayed that come before.
        """
        problem = self.settle([each for each in self.pending() if call is None or each.number < call.number])
        if problem is not None:
            first = _writes(self.pending()[0])
            raise CaptureError(
                f"{name} is evaluated at {current_line()}, but its call in training mode at {first}, such as "
                "batch statistics, and waits for optimizer.step(). PyTorch would evaluate with the buffers that "
                f"it has written, and the host cannot replay it: {problem}. Evaluate after optimizer.step()."
            )

    def before_written(self, buffers: Sequence[torch.Tensor]) -> None:
        """Note buffers that an evaluation has written, in the order of recorded operations."""
        if not self._evaluations or self._evaluations[-1].number != CLOCK.now:
            CLOCK.now += 1
            self._evaluations.append(_Evaluation(CLOCK.now, {}))
        before = self._evaluations[-1].before
        for buffer in buffers:
            if id(buffer) not in before:
                before[id(buffer)] = buffer, plain(buffer).clone()

    def before_update(
        self, losses: Sequence[Loss], loop: CapturedLoop, changes: Optional[Callable[[Operation], bool]] = None
    ) -> None:
        """Settle the pending calls that an update by some losses leaves out, or refuse the update.

        `changes` returns whether the update changes weights that an operation computes with: `nothing` for gradients
        alone, and None if it is of all weights. If it is given, a call may wait for the update of another optimizer, if
        no call writes before it does.
        """
        if self._evaluations:
            refuse_later_statistics(losses, [(each.number, each.before.keys()) for each in self._evaluations])
        operations = [operation for loss in losses for operation in loss.operations]
        made = {operation.number for operation in operations}
        if self._unknown.waiting:
            self._unknown.before_writes(operations, but=operations)

        def is_changed(call: Operation) -> bool:
            return changes is None or any(changes(each) for each in chain_of(call) if each.number not in made)

        if changes is not nothing:
            _settle_others(self, made)
        later = [] if changes is None else [each for each in self.waiting.values() if each.number not in made]
        later = [call for call in later if is_awaited(call)]
        if later and not loop.updates.is_ahead:
            # One that may go backward once its weights have changed is part of no update on the device.
            awaited = {each for loss in loop.updates.pending for each in loss.operations}
            passing = [call.number for call in later if call not in awaited and is_changed(call)]
            with contextlib.suppress(EarlyReadError):  # a call that they get results of cannot be replayed
                self.settle([call for call in self.pending() if call.number <= max(passing, default=0)])
        waiting = {call.number for call in later}
        pending = self.pending()
        refuse_edits_between([self.waiting[each] for each in self.replays.keys() & made], pending, self._edits)
        left = [call for number, call in self.waiting.items() if number not in made and number not in waiting]
        # These are the host's. Calls of the update that come before one of them are, too, and then all of the update.
        others = [*operations, *left]
        apart = [*left, *[call for call in later if call.number in self.replays or not may_wait(call, others)]]
        ahead = [*operations, *[call for call in later if call not in apart]]
        together = any(comes_between(call, ahead) for call in (*apart, *[call for call, _ in self._left.values()]))
        together |= any(are_written_around(each.number, each.before, ahead) for each in self._evaluations)
        settled = [call for call in pending if together or call in apart]
        problem = self.settle(settled)
        if problem is not None:
            first = next(call for call in settled if call.number in self.waiting and call.number not in self.replays)
            reason = (
                f"and so does a call that the update at {current_line()} is not computed from"
                if first.number in made
                else f"but no loss of the update at {current_line()} was computed from it"
            )
            raise CaptureError(
                f"The call of {loop.name} in training mode at {_writes(first)}, such as batch statistics, {reason}. "
                f"The host cannot replay the call: {problem}. For a forward pass without training, call model.eval() "
                "and use torch.no_grad(); leave out a batch before the model is called."
            )
        for call in left:
            # Nothing goes backward through them from now on, since weights change.
            replay = self.replays.pop(call.number, None)
            if replay is not None:
                self._left[call.number] = call, replay
                del self.waiting[call.number]
        for number in made:
            self.waiting.pop(number, None)
        self._passed |= {number for number, call in self.waiting.items() if is_changed(call)}
        self._passed &= self.waiting.keys()

    @property
    def is_empty(self) -> bool:
        """True if no call waits for its update, or for results of others, and nothing has changed buffers of one."""
        kept = self.waiting or self.replays or self._evaluations or self._left or self.shared.are_written
        return not (kept or (len(BOOKS) and _others_wait(self)))

    def state(self) -> Callable[[], None]:
        """Return a function that restores the entries of the book, for the case that an update is not made."""
        waiting, done = dict(self.waiting), {call for call in self.waiting.values() if call.done}
        left, evaluations, passed = dict(self._left), list(self._evaluations), set(self._passed)

        def restore() -> None:
            # Calls that were replayed since have written their buffers.
            replays = {**self.taken, **{number: replay for number, (_, replay) in self._left.items()}, **self.replays}
            self._left = {**left, **self._left}
            for number, call in waiting.items():
                if not call.done or call in done:
                    self._left.pop(number, None)
                    self.record(call)
                    self.replays.update({number: replays[number]} if number in replays else {})
                elif number in replays:
                    self._left[number] = call, replays[number]
            known = {each.number for each in evaluations}
            self._evaluations = [*evaluations, *[each for each in self._evaluations if each.number not in known]]
            self._passed = passed | (self._passed - waiting.keys())

        return restore

    @contextlib.contextmanager
    def in_update(self, operations: Sequence[Operation]) -> Iterator[None]:
        """Let an update in the `with` block begin with the buffers that its calls began with.

        These were replayed since, or evaluations have written the buffers. The host's values are then the newest,
        unless calls that were not replayed write the same buffers.
        """
        began, kept = _began_with(self, operations)
        self.shared.check(operations)
        left, self._left = self._left, {}
        numbers = self.replays.keys() & {each.number for each in operations if not each.done}
        self.taken = {number: self.replays.pop(number) for number in numbers}
        self.taken.update({number: replay for number, (_, replay) in left.items()})
        evaluations, self._evaluations = self._evaluations, []
        with self.weights.with_others(list(began.values()), kept) if began else contextlib.nullcontext():
            yield
        for each in evaluations:
            self._edits.note(each.number, each.before)
        for call, replay in left.values():
            if not call.done:
                call.settle(replay.results)
        self.shared.note([*operations, *[call for call, _ in left.values()]])

    def settle_unused(self) -> None:
        """Replay the calls that can be part of no update, if possible."""
        for call in self.pending():
            if not is_awaited(call):
                ahead = any(not may_wait(each, [call]) for each in self.pending())
                if ahead or self.settle([call]) is not None:
                    return

    @contextlib.contextmanager
    def on_host(self, operations: Sequence[Operation]) -> Iterator[None]:
        """Have the buffers in the `with` block that operations of pending losses began with, which the host computes.

        Raises:
            CaptureError: Another call writes buffers that the operations begin with, and cannot be replayed.
        """
        self.settle_unused()
        made = {each.number for each in operations}
        calls = [each for each in operations if each.model is not None or each.signature.writes]
        for other in [each for each in self.pending() if each.number not in made]:
            later = [call for call in calls if call.number > other.number]
            written = written_ids(other)
            if not all(written.isdisjoint(read_buffers(call)) for call in later):
                problem = self.settle(self.pending())
                if problem is not None:
                    raise CaptureError(
                        f"The call at {later[0].line} begins with buffers that {_writes(other)}, and the host cannot "
                        f"replay that call: {problem}. Read values of an update after optimizer.step()."
                    )
                break
        began, _ = _began_with(self, operations)
        self.shared.check(operations)
        with self.weights.with_others(list(began.values())) if began else contextlib.nullcontext():
            yield

    def begin_on_host(self, call: Operation) -> bool:
        """Replay the pending calls before one that write buffers which it reads; returns whether the host has these.

        Batch statistics it reads not, in training.
        """
        before = [each for each in self.pending() if each.number < call.number] if self.waiting else []
        used = read_buffers(call) if before else frozenset()
        writers = [each for each in before if not used.isdisjoint(written_ids(each))]
        if not writers:
            return self.shared.stale([call], on_host=True) is None
        return self.settle([each for each in before if each.number <= writers[-1].number]) is None

    @property
    def is_settled(self) -> bool:
        """True if no call has yet to write buffers."""
        return not self.pending()

    def pending(self) -> List[Operation]:
        """Return the calls that have not been replayed, in their order; replays that no update awaits are settled."""
        for number in list(self.replays):
            if not is_awaited(self.waiting[number]):
                call, replay = self.waiting.pop(number), self.replays.pop(number)
                self.shared.note([call])
                _leave(self, call, replay)
                call.settle(replay.results)
        return [call for number, call in sorted(self.waiting.items()) if number not in self.replays]

    def settle(
        self, calls: Sequence[Operation], older: bool = False, changing: Optional[BufferBook] = None
    ) -> Optional[str]:
        """Replay calls on the host, in their order; returns why one cannot be replayed, None if all are.

        With `older`, the host has the weights from before the last writes. Writes into weights of the models of a book
        that is `changing` are known.
        """
        if not calls:
            return None
        if not older:
            models = {each for call in calls for each in chain_of(call) if each.model is not None}
            for book in dict.fromkeys([self, *map(_book_of, sorted(models, key=by_number))]):
                if book is not changing:
                    book._edits.look()  # which may settle them
        was_settling, self._is_settling = self._is_settling, True
        try:
            for call in calls:
                if call.number not in self.waiting or call.number in self.replays:
                    continue
                problem = self._calls.problem_of(call, self._passed, older) or _settle_before(call, self, older)
                if problem is not None:
                    return problem
                chain, known = _made_from(call)
                if self.shared.stale([each for each in chain if each not in known], on_host=True) is not None:
                    return "a later call of another model has written buffers that it reads"
                if self._unknown.waiting:
                    self._unknown.before_writes([call])
                replay = self._calls.replay(chain, known)
                if is_awaited(call):
                    self.replays[call.number] = replay
                else:
                    del self.waiting[call.number]
                    _leave(self, call, replay)
                    call.settle(replay.results)
                    self.shared.note([call])
                if not older:
                    self.weights.host_changed()
                    self._edits.ignore()
        finally:
            self._is_settling = was_settling
        return None


def _began_with(
    book: BufferBook, operations: Sequence[Operation]
) -> Tuple[Dict[int, Tuple[torch.Tensor, torch.Tensor]], Set[int]]:
    """Return the buffers with which operations began, by `id`, and those of which the host has the newest."""
    began: Dict[int, Tuple[torch.Tensor, torch.Tensor]] = {}
    kept: Set[int] = set()
    if not (book.replays or book._evaluations or book._left):
        return began, kept
    # Calls whose values are known are made again, too.
    every = sorted((each for each in operations if each.model is not None or each.signature.writes), key=by_number)
    calls = [each for each in every if not each.done]
    made = {call.number for call in every}
    others = [(book.waiting[number], book.replays[number]) for number in book.replays.keys() - made]
    writers: List[Tuple[int, Optional[Line], Sequence[Tuple[torch.Tensor, Optional[torch.Tensor]]]]] = [
        *[(each.number, None, tuple(each.before.values())) for each in book._evaluations],
        *[(call.number, call.line, before_replay(call, each)) for call, each in (*others, *book._left.values())],
    ]
    reads = [(call, read_buffers(call)) for call in every if writers]
    writers += [(call.number, call.line, before_replay(call, book.replays.get(call.number))) for call in calls]
    for number, line, written in sorted(writers, key=lambda writer: writer[0]):
        for tensor, before in written:
            if before is None:
                kept.discard(id(tensor))
            elif number in made or is_read_before(number, line, tensor, reads):
                began.setdefault(id(tensor), (tensor, before))
                kept.add(id(tensor))
    return began, kept


def note_made_on_host(book: BufferBook, call: Operation, before: Dict[str, torch.Tensor]) -> None:
    """Note a call that was made on the host alone, and has written buffers there, with their values from before."""
    book.weights.host_changed()
    book._edits.ignore()
    book.shared.note([call])
    _leave(book, call, Replay({name: Contents(value) for name, value in before.items()}, []))


def _borrows(book: BufferBook, call: Operation) -> bool:
    """Return whether a call of a book gets results of models trained apart, other than by one that waits already."""
    found = chain_of(call, but=book.waiting)
    return any(each.model is not None and _book_of(each) is not book for each in found)


def _leave(book: BufferBook, call: Operation, replay: Replay) -> None:
    """Keep a call that no update makes, while others wait from before it: it may be between those of an update."""
    if any(number < call.number for number in book.waiting):
        book._left[call.number] = call, replay


def _others_wait(book: BufferBook) -> bool:
    """Return whether calls of models that are trained apart from a book's wait for results of others: maybe of its."""
    for other in list(BOOKS):
        if not other.waiting:
            BOOKS.discard(other)
    return any(other is not book for other in BOOKS)


def _settle_others(changing: BufferBook, made: Container[int] = (), kept: bool = True) -> None:
    """Replay the pending calls of models that are trained apart from a book's, and that get results of these.

    The weights of the book's models are about to change. Results of the calls `made` by the update come with it. Unless
    the present weights are `kept`, the calls cannot be replayed any more.
    """

    def is_of_book(each: Operation) -> bool:
        return each.model is not None and each.number not in made and _book_of(each) is changing

    for book in list(BOOKS) if BOOKS else ():
        pending = [] if book is changing or book._is_settling else book.pending()
        calls = [call for call in pending if any(map(is_of_book, chain_of(call)))]
        if calls and kept:
            book.settle([call for call in pending if call.number <= calls[-1].number], changing=changing)
        book._passed |= {call.number for call in calls if call.number not in book.replays} & book.waiting.keys()


def _settle_before(call: Operation, own: BufferBook, older: bool) -> Optional[str]:
    """Replay the calls that a call of a book is computed from and that write buffers; returns why one cannot be."""
    for each in sorted(chain_of(call), key=by_number)[:-1]:
        if not each.signature.writes:
            continue
        book = _book_of(each)
        before = [other for other in book.pending() if other.number <= each.number]
        problem = book.settle(before, older and book is own)
        if problem is None and not (each.done or each.number in book.replays):
            problem = each.problem or "no update can be of it any more"
        if problem is not None:
            return f"it is computed from the call at {each.line}, which the host cannot replay: {problem}"
    return None


def _made_from(call: Operation) -> Tuple[Sequence[Operation], Dict[Operation, List[torch.Tensor]]]:
    """Return a call and what it is computed from, in order, with the results that are known on the host."""
    chain = sorted(chain_of(call), key=by_number)
    known = {each: _book_of(each).replays[each.number].results for each in chain[:-1] if each.signature.writes}
    return chain, known


def _writes(call: Operation) -> str:
    return f"{call.line} writes buffers ({listed(call.signature.writes)})"


def _book_of(call: Operation) -> BufferBook:
    model = model_of(call)
    loop: Any = model and model.loop
    book: BufferBook = loop.buffers
    return book
