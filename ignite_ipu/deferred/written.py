"""Ordinary tensors that a captured step writes into, as `total += loss` does: under every name they have the new value.

The value comes when the step has run. Until then the tensor's class passes whatever is done with it on to the deferred
tensor that stands for the new value; then it is an ordinary tensor again.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from ignite_ipu.deferred.graph import Value
from ignite_ipu.deferred.structure import put_together, take_apart

__all__ = ["WAITING", "WrittenTensor", "in_place_of_written", "write_back", "write_known"]

WAITING: List[Tuple[Value, torch.Tensor]] = []
"""Values that `write_known` shall write once they are known, with where to."""


class WrittenTensor(torch.Tensor):
    """A tensor of the host whose new value the device computes.

    Attributes:
        successor: The deferred tensor that stands for the value.
    """

    successor: torch.Tensor

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        args, kwargs = in_place_of_written(args, kwargs or {})
        return func(*args, **kwargs)

    def __repr__(self, *, tensor_contents: Optional[str] = None) -> str:  # type: ignore[override]
        # Debuggers and error messages show objects at any time: this one never fails.
        return repr(self.successor)

    def __str__(self) -> str:
        return str(self.successor)


def in_place_of_written(args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Tuple[Tuple[Any, ...], Dict[str, Any]]:
    """Return the arguments with the successors of all written tensors."""
    leaves: List[Any] = []
    structure = take_apart((args, kwargs), leaves)
    replaced: Tuple[Tuple[Any, ...], Dict[str, Any]] = put_together(
        structure, [leaf.successor if type(leaf) is WrittenTensor else leaf for leaf in leaves]
    )
    return replaced


def write_back(value: Value, target: torch.Tensor, successor: torch.Tensor) -> None:
    """Write a value into a tensor of the host as soon as it is known, and let `successor` answer for it until then."""
    WAITING.append((value, target))
    if type(target) is torch.Tensor:
        target.__class__ = WrittenTensor
    if type(target) is WrittenTensor:
        target.successor = successor


def write_known() -> None:
    """Write the values that have become known where they were asked for."""
    waiting = [(value, target) for value, target in WAITING if not value.known and value.operation.problem is None]
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        for value, target in WAITING:
            if value.known:
                target.copy_(value.get())
                if type(target) is WrittenTensor and all(target is not later for _, later in waiting):
                    target.__class__ = torch.Tensor  # type: ignore[assignment]
                    target.__dict__.pop("successor", None)
    WAITING[:] = waiting
