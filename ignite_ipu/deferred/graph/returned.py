"""Results of a model's call that PyTorch gives no memory of their own: parameters, buffers, arguments, and their views.

A program returns copies of these. PyTorch's result has the values that the weight has when it is read, and a write into
it is one into the weight. So the call gives the object itself, or a view of it that functions make anew. Constants are
results of the same kind: the loop knows their values before the step.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, Union

import torch

from ignite_ipu.program.guards.retrace import OperatorRecorder
from ignite_ipu.program.tensors.raw import plain, requires_grad
from ignite_ipu.torch_names.tensors import base_of, memory_of

_META = torch.device("meta")
_Step = Tuple[Callable[..., Any], Tuple[Any, ...]]
_GIVES_ITEM: Callable[..., Any] = torch.Tensor.__getitem__


class Returned(NamedTuple):
    """The memory of a result.

    Attributes:
        source: The name of a parameter or buffer, the position of a tensor among those of the arguments, or a constant.
        steps: The functions that lead from it to the result, with their other arguments; none if it is the result.
        strides: Those of an argument from which the functions lead to the result; None for all others. An argument of
            a later call may have others: then the result is the program's copy.
    """

    source: Union[int, str, torch.Tensor]
    steps: Sequence[_Step]
    strides: Optional[Tuple[int, ...]] = None

    @property
    def is_argument(self) -> bool:
        """True if it is that of an argument."""
        return isinstance(self.source, int)

    def is_one_of(self, trained: Sequence[bool]) -> bool:
        """Return whether it is that of an argument that requires gradients, as given for all."""
        return isinstance(self.source, int) and trained[self.source]


def returned_in(
    results: Sequence[torch.Tensor],
    arguments: Sequence[torch.Tensor],
    named: Mapping[str, torch.Tensor],
    evaluates: bool = False,
    recorder: Optional[OperatorRecorder] = None,
    outputs: int = 0,
) -> List[Tuple[int, Returned]]:
    """Return the results of a call on the host, with their positions, that are arguments, named tensors, or views.

    By the `recorder` of the call, so are constants among the first `outputs`, such as a tensor in an attribute of the
    model that is no buffer; those that the call computes are made anew by it.

    A view of a leaf that requires gradients does so, without gradients too, unless it is detached. No gradients flow
    through the views of a call that `evaluates`.
    """
    sources: List[Tuple[Union[int, str, torch.Tensor], torch.Tensor]] = [*named.items(), *enumerate(arguments)]
    by_memory: Dict[int, List[Tuple[Union[int, str, torch.Tensor], torch.Tensor]]] = {}
    constants: Set[int] = set()
    if recorder is not None:
        constants.update(position for position, each in enumerate(results[:outputs]) if recorder.is_constant(each))
    if recorder is not None and constants:
        read = [*recorder.constants, *map(results.__getitem__, constants)]
        sources += [(each, each) for each in read if not (recorder.has_made(each) or requires_grad(each))]
    for key, source in sources:
        by_memory.setdefault(memory_of(source), []).append((key, source))
    memory = [memory_of(result) for result in results]
    found: List[Tuple[int, Returned]] = []
    for position, result in enumerate(results):
        candidates = by_memory.get(memory[position], [])
        if position not in constants:
            candidates = [(key, source) for key, source in candidates if not isinstance(key, torch.Tensor)]
        own = next((Returned(key, ()) for key, source in candidates if source is result), None)
        for key, source in candidates if own is None else ():
            steps = _steps(plain(source), plain(result))
            is_argument = isinstance(key, int)
            if steps is None or (is_argument and any(function is torch.Tensor.as_strided for function, _ in steps)):
                continue  # later arguments begin elsewhere in their memory
            if evaluates or (requires_grad(source) and not requires_grad(result)):
                steps = [(torch.Tensor.detach, ()), *steps]
            own = Returned(key, steps, source.stride() if is_argument else None)
            break
        if own is None and position in constants and memory.count(memory[position]) == 1 and not requires_grad(result):
            own = Returned(plain(result).detach().clone(), [(torch.Tensor.clone, ())])
        if own is not None:
            found.append((position, own))
    return found


def _steps(base: torch.Tensor, view: torch.Tensor) -> Optional[List[_Step]]:
    """Return functions of slices, shapes and orders that lead from a tensor to a view; None if it is no view of it."""
    if base.dtype != view.dtype or not view.numel() or not base.numel() or 0 in base.stride():
        return None
    offset = int(view.storage_offset() - base.storage_offset())
    reach = sum((size - 1) * stride for size, stride in zip(view.shape, view.stride()))
    meta = torch.empty_strided(base.shape, base.stride(), dtype=base.dtype, device=_META)
    begins: List[List[_Step]] = [[]]
    shape = _regrouped(base, view)
    if shape is not None:
        begins.append([(torch.Tensor.reshape, (shape,))])
    for begin in begins:
        found = _follow(meta, begin)
        steps = _sliced(found, view, offset, reach)
        if steps is None:
            continue
        # A function that makes no view, but a copy, has led elsewhere.
        found = _follow(found, steps)
        if base_of(found) is meta and found.storage_offset() == offset and _strides(found) == _strides(view):
            return [*begin, *steps]
    if base.storage_offset() or offset < 0 or offset + reach >= base.untyped_storage().nbytes() // base.element_size():
        return None
    return [(torch.Tensor.as_strided, (tuple(view.shape), view.stride(), offset))]


def _regrouped(base: torch.Tensor, view: torch.Tensor) -> Optional[Tuple[int, ...]]:
    """Return a shape for a tensor in which the axes of a view are axes of it; None if there is none."""
    lengths: List[int] = []
    rest = base.numel()
    for stride in sorted({stride for size, stride in zip(view.shape, view.stride()) if size > 1 and stride} | {1})[
        ::-1
    ]:
        if rest % stride:
            return None
        lengths.append(rest // stride)
        rest = stride
    return tuple(lengths) if base.is_contiguous() else None


def _sliced(base: torch.Tensor, view: torch.Tensor, offset: int, reach: int) -> Optional[List[_Step]]:
    """Return functions that take a view out of a tensor by slices, and give it its axes; None if there are none."""
    box = _box(base, view, offset, reach)
    if box is None:
        return None
    size, strides = tuple(view.shape), view.stride()
    lengths = [1 if not stride else length for length, stride in zip(size, strides)]
    order = sorted(range(len(size)), key=lambda each: -strides[each])
    back, shape = tuple(sorted(range(len(size)), key=order.__getitem__)), tuple([lengths[each] for each in order])
    sliced = tuple([len(range(each.start, each.stop, each.step)) for each in box])
    if math.prod(sliced) != math.prod(shape):
        return None
    steps: List[_Step] = []
    if sliced != tuple(base.shape):
        steps.append((_GIVES_ITEM, (box,)))
    if shape != sliced or not steps:
        steps.append((torch.Tensor.reshape, (shape,)))
    if back != tuple(range(len(size))):
        steps.append((torch.Tensor.permute, (back,)))
    if tuple(lengths) != size:
        steps.append((torch.Tensor.expand, (size,)))
    return steps


def _follow(tensor: torch.Tensor, steps: Sequence[_Step]) -> torch.Tensor:
    for function, args in steps:
        tensor = function(tensor, *args)
    return tensor


def _box(base: torch.Tensor, view: torch.Tensor, offset: int, reach: int) -> Optional[Tuple[slice, ...]]:
    """Return the slices of a tensor that hold a view; None if there are none."""
    found = [slice(0, 1, 1)] * base.dim()
    first, last = offset, offset + reach
    if first < 0:
        return None
    for axis in sorted(range(base.dim()), key=lambda each: -base.stride()[each]):
        length, stride = base.shape[axis], base.stride()[axis]
        if length == 1:
            continue
        low, high = first // stride, last // stride
        first, last = first - low * stride, last - high * stride
        if high >= length:
            return None
        strides = [each for size, each in zip(view.shape, view.stride()) if size > 1]
        step = min((each // stride for each in strides if stride <= each < stride * length), default=1)
        found[axis] = slice(low, high + 1, step)
    return None if first or last else tuple(found)


def _strides(tensor: torch.Tensor) -> List[Tuple[int, int]]:
    """Return the lengths of the axes, with the strides of those that have one."""
    return [(length, stride if length > 1 else 0) for length, stride in zip(tensor.shape, tensor.stride())]
