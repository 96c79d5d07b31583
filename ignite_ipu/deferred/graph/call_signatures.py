"""`CallSignature`: the common part of recorded calls of one kind."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, FrozenSet, Optional, Sequence, Tuple

from ignite_ipu.deferred.graph.leaves import Shape
from ignite_ipu.deferred.graph.modes_then import ModesThen
from ignite_ipu.deferred.graph.returned import Returned
from ignite_ipu.deferred.graph.structure import LEAF, Structure
from ignite_ipu.program.forward.left_behind import Place


@dataclasses.dataclass(eq=False)
class CallSignature:
    """Common part of all calls of one kind; calls are of one kind if they have the same signature object.

    Attributes:
        function: The called function; None for a captured model.
        structure: Its arguments `(args, kwargs)` without the leaves.
        result: The structure of the result; `shapes` has the shapes of its tensors.
        modes, reads, writes: Of the captured model that is called: its modes, and the names of the buffers that the
            call computes with, and of those that it writes into.
        draws: Whether the call draws random numbers.
        warned: Whether a warning was logged that it draws them in two programs.
        left: Places where the call stores tensors for other code, or None and the like instead of tensors; `result`
            then includes the values in these places.
        unsure: Other places of which it is unknown whether the call stores something there.
        evaluates: Whether every module of the captured model is in evaluation mode, and the call draws and writes
            nothing: an inference program computes the same.
        went_backward: Whether gradients have flowed through such a call.
        returned: The results that are parameters, buffers or arguments, or views of them, with their positions.
        described: The positions of the leaves of which the function takes the shape and type alone.
        aliases: Whether a part of the result may share memory with an argument.
        trains: Whether gradients flow through the call.
        chain: Returns the latest `Chain` of operations that ended with such a call; None if it is gone, or there is
            none.
    """

    function: Optional[Callable[..., Any]]
    structure: Structure
    grad: bool
    result: Structure
    shapes: Sequence[Shape]
    modes: Optional[ModesThen] = None
    writes: Sequence[str] = ()
    draws: bool = False
    warned: bool = False
    left: Sequence[Place] = ()
    evaluates: bool = False
    went_backward: bool = False
    returned: Sequence[Tuple[int, Returned]] = ()
    described: FrozenSet[int] = frozenset()
    reads: Sequence[str] = ()
    unsure: Sequence[Place] = ()

    def __post_init__(self) -> None:
        self.single = self.result is LEAF
        self.aliases = any(shape.aliases for shape in self.shapes)
        self.trains = self.grad and any(shape.requires_grad for shape in self.shapes)
        self.chain: Callable[[], Any] = lambda: None
