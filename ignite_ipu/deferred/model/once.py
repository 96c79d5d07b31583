"""`Once`: an update that the device has made is not made again on the host, whatever follows it."""

from __future__ import annotations

from typing import List, Optional

from ignite_ipu.errors import CaptureError, OptimizerError
from ignite_ipu.program.user_code import current_line


class UpdateMadeError(CaptureError):
    """An error after the device has made an update: no refusal of it, for which the host would make the update."""


class Once:
    """Context in which the device makes one update.

    Where a `CaptureError` or an `OptimizerError` refuses an update, the host makes it. One that comes after the device
    call leaves the context as an `UpdateMadeError`.

    Args:
        updates: `Weights.updates`, the number of device calls that have changed the weights.
        before: The number before the update; None if that is now.
    """

    def __init__(self, updates: List[int], before: Optional[int] = None) -> None:
        self._updates, self._before = updates, updates[0] if before is None else before

    @property
    def is_made(self) -> bool:
        """True once the device has made the update."""
        return self._updates[0] != self._before

    def __enter__(self) -> Once:
        return self

    def __exit__(self, kind: object, error: Optional[BaseException], traceback: object) -> None:
        is_refusal = isinstance(error, (CaptureError, OptimizerError)) and not isinstance(error, UpdateMadeError)
        if self.is_made and is_refusal:
            raise UpdateMadeError(
                f"The device has made the update at {current_line()}, and what follows it failed: {error} The weights "
                "are those after the update."
            ) from error
