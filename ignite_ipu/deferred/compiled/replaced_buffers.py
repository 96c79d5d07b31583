"""Buffers in whose place a model's own code puts other tensors, as for a cache that grows: a device keeps the first."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import torch
from torch import nn

from ignite_ipu.errors import CaptureError, listed
from ignite_ipu.program.user_code import current_line

__all__ = ["HeldBuffers"]


class HeldBuffers:
    """What a model has before a call, which has to be the same buffers afterwards.

    Args:
        model: The model.
    """

    def __init__(self, model: nn.Module) -> None:
        self._name = type(model).__name__
        # A look into __dict__ in the ordinary way counts as a read of all attributes.
        found: List[Dict[str, Any]] = [object.__getattribute__(module, "__dict__") for module in model.modules()]
        self._attributes: List[Tuple[Dict[str, Any], Dict[str, Any]]] = [(each, dict(each)) for each in found]

    def check(self, before: Dict[str, torch.Tensor], after: Dict[str, torch.Tensor]) -> None:
        """Refuse a call that has replaced buffers, and put back the attributes in which it may have noted that.

        Raises:
            CaptureError: It has.
        """
        replaced = [path for path, buffer in before.items() if after.get(path) is not buffer]
        if not replaced:
            return
        for now, then in self._attributes:
            now.clear()
            now.update(then)
        raise CaptureError(
            f"The forward of {self._name}, called at {current_line()}, puts another tensor in the place of the buffer "
            f"{listed(replaced)}, but a device keeps the tensor that the model was prepared with. Write into that in "
            "place (copy_()); or, where it is a cache that grows, make it long enough before the model is prepared, as "
            "by a call with the longest input."
        )
