"""Reads of values in a forward, which a trace has not: code decides by data, or shapes depend on data.

A call on the host finds those that the model's own code makes. Others show when the model is compiled.
"""

from __future__ import annotations

import weakref
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

import torch

from ignite_ipu.capabilities.traced import NO_FUNCTION, SHAPE, VALUE, Restriction
from ignite_ipu.errors import ForwardError
from ignite_ipu.operators.words import word_set
from ignite_ipu.program.argument_checks import passing_value
from ignite_ipu.program.guards.retrace import OperatorRecorder
from ignite_ipu.program.tensors.described import VALUE_READS
from ignite_ipu.program.tensors.trees import tensors_in
from ignite_ipu.program.traced_places import refusal_at
from ignite_ipu.program.user_code import OURS, Owner, current_line, frame_outside, owner_of
from ignite_ipu.torch_names.files import CHOOSING, PASSING_ON

_BY_VALUES = word_set("nonzero argwhere masked_select unique unique_consecutive _unique2")
_MASKS = (torch.bool, torch.uint8)


class ValueReads:
    """Refuses reads of data in a call of a model on the host, whose operators are recorded.

    Reads by code of libraries pass, which may take another way while it is traced, and those of checks of arguments.

    Attributes:
        refusal: The last error for a read; the code may have caught it.
    """

    def __init__(self, recorder: OperatorRecorder) -> None:
        # The recorder refers to this one, and a cycle would keep the tensors that it has noted.
        self._recorder: OperatorRecorder = weakref.proxy(recorder)
        self.refusal: Optional[ForwardError] = None

    def check(self, func: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        name = getattr(func, "__name__", "")
        restriction, read = SHAPE, [args, kwargs]
        if name in VALUE_READS:
            restriction = VALUE
        elif not (name in _BY_VALUES or (name == "where" and len(args) + len(kwargs) == 1)):
            return
        self._refuse(tensors_in(read), restriction, name)

    def check_index(self, index: Sequence[Optional[torch.Tensor]]) -> None:
        """Refuse an index by masks of data. It is the recorder's to see, as PyTorch 2.0 shows it to no context."""
        self._refuse([each for each in index if each is not None and each.dtype in _MASKS], SHAPE, "a mask")

    def _refuse(self, tensors: Sequence[torch.Tensor], restriction: Restriction, name: str) -> None:
        if any(map(self._recorder.is_data, tensors)) and _is_own_code() and not _passes(name):
            self.refusal = ForwardError(refusal_at(restriction, current_line().place, NO_FUNCTION, name))
            raise self.refusal


def _passes(name: str) -> bool:
    return name == "__bool__" and passing_value(current_line()) is not None


def _is_own_code() -> bool:
    """Return whether the caller of PyTorch is no code of PyTorch's or of a library that passes calls on."""
    frame = frame_outside(OURS, *PASSING_ON, *CHOOSING)
    return frame is not None and owner_of(frame.f_code.co_filename) is Owner.USER
