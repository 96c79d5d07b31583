"""Operators that a forward calls on the host, with their arguments, to compare two calls of it.

A tensor among the arguments is the operator that it comes from, and a constant is its value.
"""

from __future__ import annotations

import zlib
from typing import Any, Dict, Hashable, Iterable, List, Optional, Tuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ignite_ipu.program.forward.randomness import SEED
from ignite_ipu.program.tensors.raw import dtype_of, plain, shape_of
from ignite_ipu.program.user_code import Line, current_line

__all__ = ["DRAWN", "Operation", "Recorder"]

DRAWN = "a torch.Generator"
"""In the place of a generator that an operator draws from, before its state."""

Operation = Tuple[Any, Hashable, Hashable]
"""An operator, its arguments, and those with names."""

_GENERATORS = (torch.Generator, torch._C.Generator)
_PLACE = "_ignite_ipu_place"
_MOST_SHOWN = 8


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operators that are called in its `with` block.

    Args:
        watched: The number of an operator whose line is wanted.

    Attributes:
        operations: The operators, each with its arguments.
        line: Where the user's code has the one that is watched.
    """

    def __init__(self, watched: int = -1) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: List[Operation] = []
        self.line: Optional[Line] = None
        self._watched = watched
        # Tensors tell by it where they come from in this trace; those of an earlier one are constants.
        self._token = object()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # no torch.compile is running: PyTorch would look for one at every operator

    def mark(self, tensors: Iterable[torch.Tensor]) -> None:
        """Let tensors be inputs or weights, of which the values do not count."""
        for number, tensor in enumerate(tensors):
            setattr(tensor, _PLACE, (self._token, (-1, number)))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Optional[Dict[str, Any]] = None
    ) -> Any:
        number = len(self.operations)
        if number == self._watched:
            self.line = current_line()
        self.operations.append((func, self._of(args), self._of(kwargs or {})))
        output = func(*args, **(kwargs or {}))
        for place, tensor in enumerate(output if isinstance(output, (list, tuple)) else [output]):
            if isinstance(tensor, torch.Tensor):
                setattr(tensor, _PLACE, (self._token, (number, place)))
        return output

    def _of(self, value: Any) -> Hashable:
        """Return an argument, comparable."""
        if isinstance(value, torch.Tensor):
            token, place = getattr(value, _PLACE, (None, None))
            return place if token is self._token else _constant(value)
        if isinstance(value, (list, tuple)):
            return tuple(map(self._of, value))
        if isinstance(value, dict):
            return tuple([(key, self._of(item)) for key, item in value.items()])
        if type(value) in _GENERATORS:  # isinstance() takes PyTorch longer than all the rest
            # One that the call has seeded is in the same state in another call; torch's own never counts as seeded.
            return DRAWN, object() if value.initial_seed() == SEED else value.get_state().numpy().tobytes()
        # A float that is no number is equal to itself here.
        return repr(value) if isinstance(value, float) else value


def _constant(tensor: torch.Tensor) -> Hashable:
    """Return what stands for a tensor that comes from outside; of weights other guards compare the values."""
    with torch._C.DisableTorchFunctionSubclass():
        shape, dtype = tuple(shape_of(tensor)), dtype_of(tensor)
    if issubclass(type(tensor), torch.nn.Parameter):
        return shape, dtype
    values = plain(tensor).contiguous()
    if values.numel() <= _MOST_SHOWN:
        return shape, dtype, repr(values.tolist())
    return shape, dtype, zlib.crc32(values.reshape(-1).view(torch.uint8).numpy().tobytes())
