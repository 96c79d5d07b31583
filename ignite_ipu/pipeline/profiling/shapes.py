"""Operators over shapes alone, each worked out once: layers repeat, and so do the shapes in them."""

from __future__ import annotations

import copy
from typing import Any, Callable, Dict, Hashable, List, Optional, Tuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from ignite_ipu.program.tensors.raw import plain, requires_grad

_Layout = Tuple[torch.Size, Tuple[int, ...], torch.dtype, torch.device]


class ShapeMemory:
    """Calls operators on tensors without values, and remembers the layouts of what they return.

    Only operators that return new tensors are remembered; views and writes are called each time.
    """

    def __init__(self) -> None:
        self._functional: Dict[Any, bool] = {}
        self._results: Dict[Hashable, Tuple[bool, List[_Layout]]] = {}

    def call(self, func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        """Return what the operator returns, as a new tensor or tuple of tensors of the same layouts."""
        if not self._is_functional(func):
            return func(*args, **kwargs)
        try:
            key = func, _key(args), _key(tuple(kwargs.items()))
            known = self._results.get(key)
        except TypeError:  # an argument that is not hashable
            return func(*args, **kwargs)
        if known is not None:
            single, layouts = known
            made = tuple(
                torch.empty_strided(size, stride, dtype=dtype, device=device) for size, stride, dtype, device in layouts
            )
            return made[0] if single else made
        result = func(*args, **kwargs)
        if _shares_storage(result, args):
            # A view after all, such as `_unsafe_view`, whose schema does not say so.
            self._functional[func] = False
            return result
        found = _layouts(result)
        if found is not None:
            self._results[key] = isinstance(result, Tensor), found
        return result

    def _is_functional(self, func: Any) -> bool:
        if func not in self._functional:
            schema = func._schema
            self._functional[func] = not schema.is_mutable and all(r.alias_info is None for r in schema.returns)
        return self._functional[func]


def shape_twin(model: nn.Module) -> nn.Module:
    """Return a copy of a model whose parameters and buffers have shapes but no values, in next to no memory."""
    return _twin(model, lambda x: torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta"))


def ordinary(model: nn.Module) -> nn.Module:
    """Return the model itself, or, if PopTorch has wrapped its tensors, a copy over the same memory that it has not.

    No newer values are fetched from a device.
    """
    plain = all(type(tensor) in (Tensor, nn.Parameter) for tensor in (*model.parameters(), *model.buffers()))
    return model if plain else _twin(model, lambda tensor: tensor)


def _twin(model: nn.Module, make: Callable[[Tensor], Tensor]) -> nn.Module:
    memo: Dict[int, Any] = {}
    with torch._C.DisableTorchFunctionSubclass():
        for tensor in (*model.parameters(), *model.buffers()):
            twin = make(plain(tensor))
            if isinstance(tensor, nn.Parameter):
                twin = nn.Parameter(twin, requires_grad(tensor))
            memo[id(tensor)] = twin
    return copy.deepcopy(model, memo)


def _shares_storage(result: Any, args: Any) -> bool:
    read = {t.untyped_storage()._cdata for t in tree_flatten(args)[0] if isinstance(t, Tensor)}
    return any(t.untyped_storage()._cdata in read for t in tree_flatten(result)[0] if isinstance(t, Tensor))


def _key(value: Any) -> Hashable:
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype, value.device
    if isinstance(value, (list, tuple)):
        return tuple([_key(item) for item in value])
    # 1, 1.0 and True are equal, but promote types differently.
    return type(value), value


def _layouts(result: Any) -> Optional[List[_Layout]]:
    tensors = [result] if isinstance(result, Tensor) else result
    if not isinstance(tensors, (list, tuple)) or not all(isinstance(tensor, Tensor) for tensor in tensors):
        return None
    return [(tensor.shape, tensor.stride(), tensor.dtype, tensor.device) for tensor in tensors]
