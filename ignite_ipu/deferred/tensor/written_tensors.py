"""Ordinary tensors that a captured step writes into, as `total += loss` does: under every name they have the new value.

The value comes when the step has run. Until then the tensor's class forwards every operation to the deferred tensor of
the new value; then it is an ordinary tensor again.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
import weakref
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence, Tuple

import torch

from ignite_ipu.deferred.graph.operations import Value
from ignite_ipu.deferred.graph.step_graph import ancestors
from ignite_ipu.deferred.graph.structure import mapped
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass


@dataclasses.dataclass(eq=False)
class _Write:
    """A value that a tensor of the host shall have once it is known."""

    value: Value
    target: torch.Tensor


_Given = Callable[[], Optional[_Write]]
WAITING: Deque[_Given] = collections.deque()
"""Gives what `write_known` shall write, None where nobody can make the value known any more."""

_TURN = threading.RLock()


class WrittenTensor(torch.Tensor):
    """A tensor of the host whose new value the device computes; the deferred tensor `successor` stands for it."""

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
    args, kwargs = mapped((args, kwargs), lambda leaf: leaf.successor if type(leaf) is WrittenTensor else leaf)
    return args, kwargs


def write_back(value: Value, target: torch.Tensor, successor: torch.Tensor) -> None:
    """Write a value into a tensor of the host as soon as it is known, and let `successor` answer for it until then."""
    WAITING.append(_kept(_Write(value, target)))
    if type(target) is torch.Tensor:
        target.__class__ = WrittenTensor
    if type(target) is WrittenTensor:
        target.successor = successor


def write_known() -> None:
    """Write the values that have become known into their tensors."""
    known: Deque[_Write] = collections.deque()
    late: List[_Write] = []
    with _TURN:
        # Other threads append to it meanwhile.
        for given in [WAITING.popleft() for _ in range(len(WAITING))]:
            write = given()
            if write is None:
                continue
            if write.value.known:
                known.append(write)
            elif write.value.operation.problem is None:
                late.append(write)
                WAITING.append(given if isinstance(given, weakref.ref) else _kept_by_calls(write))
        try:
            while known:
                write = known.popleft()
                target, last = write.target, all(write.target is not each.target for each in late)
                with torch.no_grad(), DisableTorchFunctionSubclass():
                    target.copy_(write.value.get())
                    if last and type(target) is WrittenTensor:
                        target.__class__ = torch.Tensor  # type: ignore[assignment]
                        target.__dict__.pop("successor", None)
        finally:
            # One whose value cannot be computed raises when it is read, and does not prevent writes of others.
            WAITING.extend(map(_kept, known))


def _kept(write: _Write) -> _Given:
    return lambda: write


def _kept_by_calls(write: _Write) -> _Given:
    """Return the inputs of a write as long as the calls of models that its value depends on can run."""
    calls = [each for each in ancestors(write.value) if each.signature.function is None and not each.done]
    for call in calls:
        call.kept = [*getattr(call, "kept", ()), write]
    return weakref.ref(write) if calls else _kept(write)
