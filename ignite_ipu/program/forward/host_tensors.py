"""One device for a forward, as on a GPU: tensors of the host are the IPU's, and moves away from it have no effect.

Tensors of the host that a forward computes with are a mask, a table or a cache that it made once and has kept.

PyTorch needs no word for them where model and tensor are on one device. In a trace the model's tensors are the IPU's,
and PopTorch refuses one of the host beside them. It takes one that is moved in, whose values are compiled; as with all
that a forward reads from Python, guards detect changes of these. PopTorch would make tensors that a forward creates or
draws "on its device" once, on the host: noise would be the same in every step.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Tuple

import torch

from ignite_ipu.program.function_mode import FunctionContext, writes_first
from ignite_ipu.program.tensors.trees import map_tensors, tensors_in

_IPU = "ipu:0"

_MOVES = ("to", "cpu", "cuda")
# Functions whose results are written or drawn in every step; others make constants, which code may read.
_FILLED = frozenset(("zeros", "ones", "empty", "full"))
_MAKING = _FILLED | {"rand", "randn", "randint", "randperm", "normal"}
_DRAWING = frozenset(("normal", "bernoulli", "poisson", "multinomial", "rand_like", "randn_like", "randint_like"))
# Functions that may count with one tensor or none.
_ALONE = _MAKING | _DRAWING | {*_MOVES, "__setitem__"}
# Functions that write into some of their arguments: a copy that is moved in would get the write.
_WRITING = ("batch_norm", "instance_norm", "native_batch_norm", "__set__")


class HostTensorsMovedIn(FunctionContext):
    """Moves tensors of the host that meet the IPU's to it, in its `with` block, where a model is traced.

    PopTorch refuses those that are trained or written into: changes of a copy on the device would be lost.
    """

    def __init__(self) -> None:
        super().__init__()
        self._filled: List[torch.Tensor] = []

    def concerns(
        self, func: Callable[..., Any], tensors: List[torch.Tensor], args: Tuple[Any, ...], kwargs: Dict[str, Any]
    ) -> bool:
        if getattr(func, "__name__", "") in _ALONE:
            return True
        if len(tensors) < 2:
            return False  # a look at a device takes a trace as long as an operator
        on_ipu = [tensor.device.type == "ipu" for tensor in tensors]
        return any(on_ipu) and not all(on_ipu)

    def call(self, func: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        """Return the function's result for arguments that are all the IPU's, if one is."""
        tensors = tensors_in((args, kwargs))
        name = getattr(func, "__name__", "")
        if len(tensors) < 2 and name not in _ALONE:
            return func(*args, **kwargs)  # a look at a device takes a trace as long as an operator
        on_ipu = [tensor.device.type == "ipu" for tensor in tensors]
        if name in _MOVES and on_ipu and on_ipu[0] and isinstance(args[0], torch.Tensor):
            return _cast(args, kwargs)
        if not any(on_ipu) and kwargs.get("generator") is None and name in (_DRAWING if tensors else _MAKING):
            others = {key: value for key, value in kwargs.items() if key != "device"}
            others.update({} if tensors else {"device": _IPU})
            made = func(*map_tensors(args, _moved_in), **map_tensors(others, _moved_in))
            self._filled += [made] if name in _FILLED else []
            return made
        if name == "__setitem__" and any(args[0] is each for each in self._filled):
            args = (args[0], _by_tensors(args[0], args[1]), *args[2:])
        if len(tensors) < 2 or all(on_ipu) or not any(on_ipu) or name in _WRITING or "out" in kwargs:
            return func(*args, **kwargs)
        first = args[:1] if writes_first(name) else map_tensors(args[:1], _moved_in)
        return func(*first, *map_tensors(args[1:], _moved_in), **map_tensors(kwargs, _moved_in))


def _moved_in(tensor: torch.Tensor) -> torch.Tensor:
    is_trained = tensor.requires_grad and torch.is_grad_enabled()
    movable = tensor.device.type == "cpu" and tensor.layout is torch.strided and not is_trained
    return tensor.to(_IPU) if movable else tensor


def _cast(args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> torch.Tensor:
    """Return a tensor of the IPU, which moves leave there, in the type that a move names."""
    tensor: torch.Tensor = args[0]
    given = [*args[1:], *kwargs.values()]
    types = [each.dtype if isinstance(each, torch.Tensor) else each for each in given]
    wanted = [each for each in types if isinstance(each, torch.dtype) and each is not tensor.dtype]
    return tensor.to(wanted[0]) if wanted else tensor


def _by_tensors(target: torch.Tensor, key: Any) -> Any:
    """Return tensors for numbers and slices: PopTorch would lose writes into a slice of constants.

    Source: PopTorch's dispatcher, which folds such a slice to a constant; `index_put_` it does not.
    """
    parts = list(key) if isinstance(key, tuple) else [key]
    dots = next((position for position, part in enumerate(parts) if part is Ellipsis), len(parts))
    parts[dots : dots + 1] = [slice(None)] * (target.dim() - len(parts) + (dots < len(parts)))
    if not all(isinstance(part, (int, slice)) and not isinstance(part, bool) for part in parts):
        return key
    sliced = [number for number, part in enumerate(parts) if isinstance(part, slice)]
    found: List[torch.Tensor] = []
    for number, (size, part) in enumerate(zip(target.shape, parts)):
        kept = range(size)[part] if isinstance(part, slice) else [part]
        # One dimension for each slice, in order; numbers have none of their own.
        shape = [len(kept) if number == each else 1 for each in sliced] or [1]
        found.append(torch.tensor(list(kept), device=_IPU).view(shape))
    return tuple(found)
