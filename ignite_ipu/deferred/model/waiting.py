"""The books of buffers with calls that wait for their updates: one loop may need what the calls of another write."""

from __future__ import annotations

import weakref
from typing import Any

from ignite_ipu.deferred.graph.state import written_buffers
from ignite_ipu.errors import CaptureError, listed
from ignite_ipu.program.tensors.sharing import address_of
from ignite_ipu.program.user_code import current_line
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass

ALL: weakref.WeakSet[Any] = weakref.WeakSet()
"""The books of all loops, also of loops that have become parts of others."""


def settle_sharing(book: Any) -> None:
    """Replay the waiting calls of other loops that write into the memory of a book's tensors, which are used now.

    Models with one buffer are in one loop. Buffers that are views of one memory are different tensors to a device.

    Raises:
        CaptureError: A call cannot be replayed.
    """
    weights = book.weights
    others = [each for each in list(ALL) if each.waiting and each.weights in weights.sharing] if weights.sharing else ()
    if not others:
        return
    with DisableTorchFunctionSubclass():
        memories = set(map(address_of, weights.held.tensors)) - {0}
        for other in others:
            pending = other.pending()
            written = [{address_of(each) for each in written_buffers(call).values()} for call in pending]
            last = max((index for index, each in enumerate(written) if not memories.isdisjoint(each)), default=-1)
            if last < 0:
                continue
            weights.to_host()
            problem = other.settle(pending[: last + 1])
            if problem is not None:
                call = next(each for each in pending if each.number not in other.replays)
                raise CaptureError(
                    f"Weights or buffers are used at {current_line()}, and {call.line} writes buffers in the same "
                    f"memory ({listed(call.signature.writes)}), and waits for optimizer.step(). The host cannot "
                    f"replay the call: {problem}. Make that update before, or let the models have one tensor as "
                    "their buffer."
                )
            weights.host_changed()
