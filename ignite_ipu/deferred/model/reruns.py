"""Calls that run once more, for an update after the program that gave their values: they write their buffers once.

The values may have been needed for a read, or by another optimizer's update. The first run keeps the contents of the
buffers around it. With these the next one begins.
"""

from __future__ import annotations

import contextlib
from typing import Callable, Container, Dict, FrozenSet, Iterator, Optional, Sequence, Set, Tuple

import torch

from ignite_ipu.deferred.graph.operations import Contents, Operation, by_number
from ignite_ipu.deferred.graph.state import Values, read_buffers, written_buffers
from ignite_ipu.deferred.model.buffers import BufferBook
from ignite_ipu.errors import CaptureError, logger
from ignite_ipu.program.tensors.raw import plain
from ignite_ipu.program.user_code import current_line
from ignite_ipu.session.weights.tracker import Weights

_Write = Tuple[Operation, str, torch.Tensor]
"""A call, and a buffer that it writes, with its name."""


@contextlib.contextmanager
def with_reruns(
    operations: Sequence[Operation],
    awaited: Container[Operation],
    keeps: Callable[[Operation], bool],
    book: BufferBook,
    older: Sequence[Tuple[torch.Tensor, Optional[torch.Tensor]]] = (),
) -> Iterator[bool]:
    """Run operations in the `with` block, of which some run once more, or may do so later.

    Args:
        operations: All that the program makes.
        awaited: Those that other updates wait for.
        keeps: Returns whether gradients may flow through an operation once more.
        book: The buffers of the models, as they were before the calls of the update that were replayed.
        older: Further tensors with the values that the program begins with.

    Returns:
        Whether the program begins with other values than the host's, which are back after the block.

    Raises:
        CaptureError: The contents are unknown with which a call begins.
    """
    values, weights = [*older], book.weights
    restored: Optional[Set[int]] = None  # all of them
    if any([each.done for each in operations]):
        begun, renewed = _begin_again(operations, book)
        values += begun
        restored = {id(tensor) for tensor, _ in values} - renewed if renewed else None
    writes = any([each.signature.writes for each in operations])
    last = _keep_before(operations, awaited, keeps, weights) if writes else ()
    with weights.with_others(values, restored) if values else contextlib.nullcontext():
        yield bool(values)
        if last:
            _keep_after(last, weights)


def _keep_before(
    operations: Sequence[Operation],
    awaited: Container[Operation],
    keeps: Callable[[Operation], bool],
    weights: Weights,
) -> Sequence[_Write]:
    """Keep the contents of buffers before the calls that may run once more; returns these calls' last writes."""
    device = set(operations)
    last: Dict[int, _Write] = {}
    kept: Set[Operation] = set()
    for operation in sorted(device, key=by_number):
        if operation.done or not operation.signature.writes:
            continue
        buffers = written_buffers(operation)
        needed = any(value.is_needed(device) for value in operation.values)
        if operation in awaited or (needed and keeps(operation)):
            weights.to_host()
            kept.add(operation)
            firsts = {name: each for name, each in buffers.items() if id(each) not in last}
            operation.contents = {name: Contents(plain(each).clone()) for name, each in firsts.items()}
        last.update({id(each): (operation, name, each) for name, each in buffers.items()})
    return [write for write in last.values() if write[0] in kept]


def _keep_after(last: Sequence[_Write], weights: Weights) -> None:
    """Keep the contents that calls have left in buffers by their last writes."""
    weights.to_host()
    for operation, name, tensor in last:
        found = operation.contents.get(name, Contents(None))
        operation.contents = {**operation.contents, name: found._replace(after=plain(tensor).clone())}


class _Chain:
    """The calls of an update that write one buffer, in their order.

    Attributes:
        tensor: The buffer.
        begun: Its contents before the first call, which has run before; None for those of now.
        begins: Whether the buffer begins with these.
        last: The last call that has run before, or was replayed.
        is_renewed: Whether a call writes it that has yet to run.
    """

    def __init__(self, tensor: torch.Tensor, is_read: bool, weights: Weights) -> None:
        self.tensor, self._is_read, self._weights = tensor, is_read, weights
        self.begun: Optional[torch.Tensor] = None
        self.last: Optional[Operation] = None
        self._left: Optional[torch.Tensor] = None  # by the last call
        self.begins = self.is_renewed = self._has_reruns = False

    def add_new(self) -> bool:
        """Add a call that has yet to run; returns whether it begins as the calls before leave the buffer."""
        self.is_renewed = True
        if not self._has_reruns:
            return True
        self._weights.to_host()
        return self.begun is not None and not _differ(self._left, plain(self.tensor))

    def add_known(self, call: Operation, contents: Contents) -> bool:
        """Add a call that has run before, or was replayed; returns whether it begins as it did then."""
        before, is_first = contents.before, self.last is None
        if call.done and self.is_renewed:
            return False
        if self._is_read and (before is None if is_first else _differ(self._left, before)):
            return False
        if is_first and call.done:
            self.begun, self.begins = before, True
        self._has_reruns |= call.done
        self.last, self._left = call, contents.after
        return True


def _begin_again(operations: Sequence[Operation], book: BufferBook) -> Tuple[Values, Set[int]]:
    """Return the buffers of calls that have run before, with their contents at that time.

    Also the ids of those that calls write which have yet to run: they have their newest values after the program.
    """
    for operation in operations:
        if operation.done and operation.signature.draws and not operation.signature.warned:
            operation.signature.warned = True
            logger.warning(
                "%s at %s is computed for an update after its values were computed, for a read or another optimizer's "
                "update, and draws random numbers anew: there it has other values than before. To have the same draws "
                "in both, draw in the loop, from inputs of the model.",
                operation.name,
                operation.line,
            )
    every = sorted(operations, key=by_number)
    read: FrozenSet[int] = frozenset().union(*[read_buffers(each) for each in every if each.model is not None])
    chains: Dict[int, _Chain] = {}
    for operation in every:
        replay = None if operation.done else book.taken.get(operation.number)
        contents = operation.contents if replay is None else replay.contents
        is_new = replay is None and not operation.done
        for name, tensor in written_buffers(operation).items():
            chain = chains.setdefault(id(tensor), _Chain(tensor, id(tensor) in read, book.weights))
            is_after_new = operation.done and chain.is_renewed
            if not (chain.add_new() if is_new else chain.add_known(operation, contents.get(name, Contents(None)))):
                raise _unknown(operation if is_after_new else chain.last or operation, name)
    begun = [chain for chain in chains.values() if chain.begins]
    return [(each.tensor, each.begun) for each in begun], {id(each.tensor) for each in begun if each.is_renewed}


def _unknown(call: Operation, name: str) -> CaptureError:
    """Return the error for a call that cannot run once more, by a buffer of this name."""
    return CaptureError(
        f"The update at {current_line()} computes {call.name} at {call.line} once more, which has written the buffer "
        f"{name} when its values were computed, for a read or another optimizer's update. Other calls write it, too, "
        "so it would hold another value. Call the model again for this update; or, if it is not to use those "
        "gradients, clear them by zero_grad() before."
    )


def _differ(left: Optional[torch.Tensor], found: Optional[torch.Tensor]) -> bool:
    """Return whether a call has found other contents than another has left; those of one program follow each other."""
    if left is None or found is None:
        return left is not found
    are_same = (left == found) | ((left != left) & (found != found))
    return not bool(are_same.all())
