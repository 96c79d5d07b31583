"""The change from fused updates to updates on the host, in the middle of a loop."""

from __future__ import annotations

import re
from typing import Any, Container, Dict, FrozenSet, List, Mapping, Optional, Set, Tuple

import torch

from ignite_ipu.capabilities.optimizers import ON_THE_HOST
from ignite_ipu.deferred.graph.operations import Operation
from ignite_ipu.deferred.graph.state import trained_in
from ignite_ipu.deferred.graph.step_graph import Loss
from ignite_ipu.deferred.model.ahead import take_back
from ignite_ipu.deferred.model.fused_update import Books
from ignite_ipu.deferred.model.gradients import Entry, GradientBook
from ignite_ipu.deferred.model.host_updates import HostUpdates
from ignite_ipu.deferred.model.loop import Loop
from ignite_ipu.deferred.model.processes import average
from ignite_ipu.deferred.tensor.lost_gradients import lose
from ignite_ipu.errors import CaptureError, logger
from ignite_ipu.program.tensors.raw import gradient_of, plain, set_gradient
from ignite_ipu.program.user_code import current_line
from ignite_ipu.session.data_parallel import reducers_within
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass

# The first sentence of a refusal is the reason; the others have remedies.
_SENTENCE_END = re.compile(r"(?<=\.)\s(?=[A-Z])")


def leave_device(loop: Loop, books: Books, on_host: HostUpdates, reason: str) -> None:
    """Make the updates of a captured loop on the host from here on, with all gradients in the books.

    Gradients that cannot be computed any more are lost: they can be cleared, and their use is refused.

    Args:
        books: Those of the fused updates.
        on_host: The updates on the host, which have followed the calls so far.
        reason: The obstacle for fused updates, as a sentence.

    Raises:
        CaptureError: An update cannot be taken back, or gradients are needed that are gone. The loop is as it was.
    """
    _forget_spent(books)
    lost = _lost(loop, books)
    loop.edits.look()
    for update in books.updates:
        if update.early is not None:
            update.early.check_unwritten(loop.session.weights.detector.edits)
    logger.warning(
        "Weights are updated on the host from %s on. %s From now on each backward() copies the gradients to the host, "
        "and each update the changed weights to the device: about %.2f MB each way. The program is compiled again.",
        current_line(),
        _SENTENCE_END.split(reason)[0],
        _megabytes(loop),
    )
    zeros = [each for each in loop.modes.parameters if _is_zero(books, each)]
    loop.withheld.update = None
    stepped: Dict[int, int] = {}
    for update in books.updates:
        update.training.forget_program()
        take_back(update)
        stepped.update(dict.fromkeys(update.gradients.own & books.gradients.all, update.turn.stepped))
    before = loop.updates, _gradients(loop, set(map(id, loop.modes.parameters)))
    restore = loop.buffers.state()
    loop.edits.ignore()
    on_host.optimizers = list(loop.updates.optimizers)
    loop.updates = on_host
    try:
        on_host.training.told = True
        on_host.weights.follow_device(stepped, books.history.kept)
        loop.guide(loop.session)
        _set_gradients({each: torch.zeros_like(plain(each)) for each in zeros})
        _bring_gradients(loop, books, on_host)
    except BaseException as error:
        # The device still makes the next update; the gradients that could not be computed are lost.
        loop.updates = before[0]
        loop.guide(loop.session)
        _set_gradients(before[1])
        for update in books.updates:
            update.discard(f"the change to updates on the host failed: {type(error).__name__}: {error}")
        restore()
        on_host.forget_programs()
        raise
    for problem, parameters in lost:
        lose(parameters, problem)
    books.views.settle()


def _bring_gradients(loop: Loop, books: Books, on_host: HostUpdates) -> None:
    """Compute all gradients in the books, and put them where PyTorch has them."""
    plan = _plan(books.gradients)
    used = [entry for entry in books.gradients.entries if entry.made]
    clips = list({entry.clip: None for entry in used if entry.clip is not None})
    # The norm was that of all, of which some may have been cleared since: these come back for it.
    cleared = frozenset().union(*[clip.ids for clip in clips]).difference(*[entry.ids for entry in used])
    aside = _gradients(loop, cleared)
    _set_gradients(dict.fromkeys(aside))
    written: Dict[int, torch.Tensor] = {}
    known: Set[Operation] = set()
    last = None
    for loss, ids, made in plan:
        if made is not None:
            if last is None or not made.made_with(last):
                written, known = {}, set()
            again = known.issuperset(loss.operations)  # it goes backward once more
            with made.rewound(known, written):
                written.update(on_host.gradients.add(loss, ids, made.weights({} if again else written)))
            last = made
            known.update(loss.operations)
    reducers = reducers_within(loop.module)
    if any(made is not None for _, _, made in plan):
        average(reducers, loop.modes.parameters, repeated=True)
    for clip in clips:
        books.updates[0].training.gradients.clip_on_host(_by_id(loop, clip.ids), clip.norm, awaited=False)
    _set_gradients(aside)
    for loss, ids, made in plan:
        if made is None:
            on_host.gradients.add(loss, ids)
    if any(made is None for _, _, made in plan):
        average([reducer for reducer in reducers if not reducer.local], loop.modes.parameters)
    for update in books.updates:
        clipping = update.training.clipping
        # The optimizer may hold others by now.
        ids = clipping.clipped if clipping.asked else update.gradients.own
        update.training.gradients.clip_on_host(_by_id(loop, ids), clipping.so_far)
        clipping.asked = False


def _plan(book: GradientBook) -> List[Tuple[Loss, Any, Any]]:
    """Return each loss of the gradients, with the ids of their parameters, and with its operations.

    Those of an update are in the order of their calls, which write buffers; pending ones are in the order in which they
    went backward, as a later one may free a graph that an earlier one retains.
    """
    found: Dict[int, Tuple[Loss, Any, Any]] = {}

    def add(loss: Loss, ids: FrozenSet[int], made: Any) -> None:
        if made is not None:
            with made.rewound():
                trained = trained_in(loss)
        else:
            trained = trained_in(loss)
        if ids.isdisjoint(trained):
            return  # they were frozen, and have no gradients of it
        known = found.get(id(loss))
        if known is None:
            found[id(loss)] = (loss, ids, made)
            return
        # Of several optimizers' updates the first began with the weights that the loss was computed with.
        first = min((each for each in (known[2], made) if each is not None), key=lambda each: each.number, default=None)
        found[id(loss)] = (loss, known[1] | ids, first)

    for entry in book.entries:
        for made in entry.made:
            add(made.loss, entry.ids if entry.clip is None else entry.clip.ids, made.first)
        for loss in entry.losses:
            add(loss, entry.ids, None)
    return sorted(found.values(), key=_moment)


def _moment(planned: Tuple[Loss, Any, Any]) -> Tuple[int, int, int]:
    loss, _, made = planned
    return (loss.number, 0, 0) if made is None else (made.taken, loss.operations[-1].number, loss.number)


def _forget_spent(books: Books) -> None:
    """Take losses out of the book whose operands are gone: of updates that went over parameters of no optimizer."""
    for entry in books.gradients.entries:
        spent = [loss for loss in entry.losses if loss.value.operation.is_spent]
        if spent:
            entry.unknown = "no optimizer holds the parameter, so its gradients of earlier updates were on the device"
            entry.given |= entry.ids & frozenset().union(*map(trained_in, spent))
            entry.losses = [loss for loss in entry.losses if loss not in spent]


def _lost(loop: Loop, books: Books) -> List[Tuple[str, List[torch.Tensor]]]:
    """Return the parameters whose gradients cannot be computed any more, by the reason why.

    Raises:
        CaptureError: Other gradients need them, or an update cannot be taken back.
    """
    for update in books.updates:
        if update.early is not None and not update.early.can_be_taken_back:
            raise update.early.error(
                f"that update cannot be taken back at {current_line()}: only the first updates of a loop can. Read "
                "values after optimizer.step(), or set IPUConfig(update='host')."
            )
    found: List[Tuple[str, List[torch.Tensor]]] = []
    for entry in books.gradients.entries:
        if (entry.used is None or entry.made) and not entry.unknown:
            continue
        parameters = [
            each for each in loop.modes.parameters if id(each) in entry.ids and _was_given(books, entry, each)
        ]
        why = entry.unknown or f"they are those of the update made at {entry.used}, and were on the device"
        problem = (
            f"Updates moved to the host at {current_line()}, where PyTorch still had gradients that nothing had "
            f"cleared, and {why}."
        )
        clipping = [update.training.clipping for update in books.updates]
        if any(each.asked and not entry.ids.isdisjoint(each.clipped) for each in clipping):
            raise CaptureError(f"Gradients were clipped together with some that are gone. {problem} {ON_THE_HOST}")
        found.append((problem, parameters))
    return found


def _is_zero(books: Books, parameter: torch.Tensor) -> bool:
    """Return whether a gradient was made zero that a loss had given a parameter before."""
    entry = books.gradients.holding(id(parameter))
    return entry is not None and entry.zeros is not None and id(parameter) in entry.given


def _was_given(books: Books, entry: Entry, parameter: torch.Tensor) -> bool:
    """Return whether losses of an update have given a parameter of an entry a gradient."""
    holding = [update for update in books.updates if id(parameter) in update.gradients.own] or books.updates
    return id(parameter) in entry.given or any(id(parameter) in update.training.reached() for update in holding)


def _gradients(loop: Loop, ids: Container[int]) -> Dict[torch.Tensor, Optional[torch.Tensor]]:
    """Return the gradients on the host of the parameters with some ids."""
    with DisableTorchFunctionSubclass():
        return {each: gradient_of(each) for each in loop.modes.parameters if id(each) in ids}


def _by_id(loop: Loop, ids: Container[int]) -> Dict[int, Optional[torch.Tensor]]:
    return {id(each): gradient for each, gradient in _gradients(loop, ids).items()}


def _set_gradients(gradients: Mapping[torch.Tensor, Optional[torch.Tensor]]) -> None:
    with DisableTorchFunctionSubclass():
        for parameter, gradient in gradients.items():
            set_gradient(parameter, gradient)


def _megabytes(loop: Loop) -> float:
    with DisableTorchFunctionSubclass():
        tensors = [plain(each) for each in loop.modes.parameters]
    return sum(each.numel() * each.element_size() for each in tensors) / 1e6
