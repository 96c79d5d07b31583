"""`StepLayout`: the layout of batches that a step is compiled for."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

from ignite_ipu import backend
from ignite_ipu.program.layout import BatchLayout


class StepLayout:
    """The layout of the batches of one step, which the first batch decides.

    PopTorch traces a shallow copy of a step, which has this object in common with it.

    Args:
        names: Names of the parts of a batch, in messages.

    Attributes:
        decided: The layout that the step is compiled for, None before the first batch.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self.decided: Optional[BatchLayout] = None

    def flattened(self, parts: Sequence[Any], micro_batches: int) -> Tuple[BatchLayout, List[Any]]:
        """Return the layout of any batch, also before compilation, and the arguments of the compiled step for it.

        Raises:
            BatchError: The batch does not divide into micro-batches.
        """
        return BatchLayout.of(self._names, parts, micro_batches)

    def settle(self, layout: BatchLayout) -> None:
        """Hold a batch to the layout that the step is compiled for, or let it decide that.

        Raises:
            BatchError: It differs from the first one.
        """
        if self.decided is None:
            self.decided = layout
        else:
            self.decided.check(layout)

    def forget(self) -> None:
        """Let the next batch decide the layout again, for use before a compilation."""
        self.decided = None

    def describe(self) -> Dict[str, str]:
        """Return the properties of batches that the step depends on, by place; empty before the first batch."""
        return {} if self.decided is None else self.decided.describe()

    def batch(self, leaves: Sequence[Any]) -> Tuple[Any, ...]:
        """Return the batch's parts that a call's leaves stand for."""
        assert self.decided is not None  # by the arguments of the call
        if backend.poptorch().isRunningOnIpu():
            self.decided.check_parsed(leaves)
        return self.decided.rebuild(leaves)
