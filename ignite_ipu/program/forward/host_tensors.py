"""Tensors of the host that a forward computes with: a mask, a table or a cache that it made once and has kept.

PyTorch needs no word for them where model and tensor are on one device. In a trace the model's tensors are the IPU's,
and PopTorch refuses one of the host beside them. It takes one that is moved in, whose values are compiled; as with all
that a forward reads from Python, guards tell when they are others.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Tuple

import torch

from ignite_ipu.program.function_mode import FunctionContext
from ignite_ipu.program.tensors.trees import map_tensors, tensors_in

__all__ = ["HostTensorsMovedIn"]

# Functions that write into some of their arguments, where a copy that is moved in would get what is written.
_WRITING = ("batch_norm", "instance_norm", "native_batch_norm", "__set__")


class HostTensorsMovedIn(FunctionContext):
    """Moves tensors of the host that meet the IPU's to it, in its `with` block, where a model is traced.

    Those that are trained or written into are left for PopTorch to refuse: what the device did to a copy would be lost.
    """

    def call(self, func: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        """Return what the function returns for arguments that are all the IPU's, if one is."""
        tensors = tensors_in((args, kwargs))
        if len(tensors) < 2:
            return func(*args, **kwargs)
        on_ipu = [tensor.device.type == "ipu" for tensor in tensors]
        name = getattr(func, "__name__", "")
        if all(on_ipu) or not any(on_ipu) or name in _WRITING or "out" in kwargs:
            return func(*args, **kwargs)
        device = tensors[on_ipu.index(True)].device

        def move(tensor: torch.Tensor) -> torch.Tensor:
            movable = tensor.device.type == "cpu" and tensor.layout is torch.strided and not tensor.requires_grad
            return tensor.to(device) if movable else tensor

        writes = name == "__setitem__" or name.startswith("__i") or (name.endswith("_") and not name.endswith("__"))
        first = args[:1] if writes else map_tensors(args[:1], move)
        return func(*first, *map_tensors(args[1:], move), **map_tensors(kwargs, move))
