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

from ignite_ipu.deferred.graph.leaves import add_recorded, is_resizable, recorded_of
from ignite_ipu.deferred.graph.operations import Value
from ignite_ipu.deferred.graph.owners import captured_at
from ignite_ipu.deferred.graph.step_graph import sources_of
from ignite_ipu.deferred.graph.structure import is_tensor_or_array, mapped
from ignite_ipu.deferred.tensor.functions import METADATA, OPERATORS, attribute_of
from ignite_ipu.errors import CaptureError
from ignite_ipu.program.tensors.raw import plain
from ignite_ipu.program.tensors.sharing import address_of, tensors_at
from ignite_ipu.program.user_code import current_line
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass, base_of, sharers_of


@dataclasses.dataclass(eq=False)
class _Write:
    """A value that a tensor of the host shall have once it is known.

    Attributes:
        base: The tensor that `target` is a view of; None for a target with memory of its own.
        views: Weakly, views of the target into which the same values were written before.
    """

    value: Value
    target: torch.Tensor
    base: Optional[torch.Tensor] = None
    views: Sequence[weakref.ref[torch.Tensor]] = ()


_Given = Callable[[], Optional[_Write]]
WAITING: Deque[_Given] = collections.deque()
"""Returns the writes for `write_known`, None once their value can no longer become known."""

_TURN = threading.RLock()


class WrittenTensor(torch.Tensor):
    """A tensor of the host whose new value the device computes; the deferred tensor `successor` stands for it.

    A tensor into whose memory another one was written has no successor: its new value is not recorded.
    """

    successor: Optional[torch.Tensor] = None

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        first = args[0] if args else None
        describes = (attribute_of(func) if name == "__get__" else name) in METADATA
        if describes and type(first) is WrittenTensor and first.successor is None:
            with DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        if name == "__setitem__" and type(args[0]) is WrittenTensor:
            _take_over(args[0], args[2])
        args, kwargs = in_place_of_written(args, kwargs or {})
        return func(*args, **kwargs)

    def __repr__(self, *, tensor_contents: Optional[str] = None) -> str:  # type: ignore[override]
        # Debuggers and error messages show objects at any time: this one never fails.
        return f"WrittenTensor(size={tuple(self.shape)})" if self.successor is None else repr(self.successor)

    def __str__(self) -> str:
        return str(_successor_of(self))


def _successor_of(tensor: WrittenTensor) -> torch.Tensor:
    if tensor.successor is None:
        raise CaptureError(
            f"A tensor of shape {tuple(tensor.shape)} is used at {current_line()}. Values that do not exist yet were "
            "written into its memory under another name, as by row = x[0]; row += y. Write x[0] += y, or compute "
            "a new tensor."
        )
    return tensor.successor


def answered(leaf: Any) -> Any:
    """Return the successor of a written tensor, and any other value as it is."""
    return _successor_of(leaf) if type(leaf) is WrittenTensor else leaf


def in_place_of_written(args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Tuple[Tuple[Any, ...], Dict[str, Any]]:
    """Return the arguments with the successors of all written tensors."""
    args, kwargs = mapped((args, kwargs), answered, is_tensor_or_array)
    return args, kwargs


def write_back(value: Value, target: torch.Tensor, successor: torch.Tensor) -> None:
    """Write a value into a tensor of the host as soon as it is known, and let `successor` answer for it until then."""
    base = base_of(target) if type(target) is torch.Tensor else None
    if type(base) is WrittenTensor:
        _successor_of(base)
    views = target.__dict__.pop("views", ())
    WAITING.append(_kept(_Write(value, target, base, views)))
    if type(base) is torch.Tensor:
        base.__class__ = WrittenTensor
    if type(target) is torch.Tensor:
        target.__class__ = WrittenTensor
    if type(target) is WrittenTensor:
        target.successor = successor


def values_awaited(tensor: torch.Tensor) -> List[Value]:
    """Return the values that are still to be written into a tensor, or into a view of it, in their order."""
    writes = [given() for given in list(WAITING)]
    return [write.value for write in writes if write is not None and (write.target is tensor or write.base is tensor)]


def shares_memory(target: torch.Tensor, name: str, arrays: bool = True) -> bool:
    """Return whether others see a write of values to come into a tensor of the host before these have come.

    Its base, and tensors that were written before by parts, wait for the values as it does itself, but parameters wait
    for none. With `arrays`,
    memory that is not PyTorch's alone counts as shared: it is an array's, or was once handed out by `numpy()`. PyTorch
    2.0 shows neither, nor how many tensors share memory, so these are searched there.
    """
    base = base_of(target)
    owners = [target] if base is None else [target, base]
    if not {torch.Tensor, WrittenTensor}.issuperset(map(type, owners)):
        return True
    sharers = sharers_of(target)
    if arrays and sharers is not None and not is_resizable(torch.Tensor.untyped_storage(target)):
        return True
    waiting = [reference for owner in owners for reference in (*owner.__dict__.get("views", ()), *recorded_of(owner))]
    known = {id(each): each for each in owners}
    for write in [given() for given in list(WAITING)]:
        if write is not None and any(each is write.target or each is write.base for each in owners):
            known[id(write.target)] = write.target
            waiting += write.views
    known.update({id(each): each for each in [reference() for reference in waiting] if each is not None})
    if sharers is not None:
        return sharers > len(known)
    return name not in OPERATORS or bool(tensors_at([address_of(target)], known))


def refuse_shared(target: torch.Tensor, name: str) -> None:
    """Refuse a write of values to come, through which gradients flow, into memory that others have.

    Raises:
        CaptureError: Others see it.
    """
    if not (captured_at(target) or shares_memory(target, name, arrays=False)):
        return
    written = "x[...] = y" if name == "__setitem__" else name
    raise CaptureError(
        f"{written} at {current_line()} writes values that do not exist yet into a tensor of shape "
        f"{tuple(target.shape)}, whose memory other tensors or arrays share. Compute a new tensor (torch.where, "
        "torch.cat, x.scatter() without the underscore), copy it first (x = x.clone()), or write after "
        "optimizer.step()."
    )


def _take_over(tensor: WrittenTensor, value: Any) -> None:
    """Let a tensor be written into by `tensor[index] += ...`, which has written into a view of it before."""
    origin: Any = getattr(value, "origin", None)
    if tensor.successor is not None or origin is None:
        return
    for given in list(WAITING):
        write = given()
        if write is not None and write.target is origin and write.base is tensor:
            WAITING.remove(given)
            value.origin, write.target.__dict__["successor"] = None, None
            tensor.__class__ = torch.Tensor  # type: ignore[assignment]
            tensor.__dict__["views"] = [*tensor.__dict__.get("views", ()), weakref.ref(origin)]


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
        awaited = {id(each) for write in late for each in (write.target, write.base)}
        try:
            while known:
                write = known.popleft()
                with torch.no_grad(), DisableTorchFunctionSubclass():
                    write.target.copy_(write.value.get())
                    _share_memory(write)
                    for written in (write.target, write.base, *[view() for view in write.views]):
                        if type(written) is WrittenTensor and id(written) not in awaited:
                            written.__class__ = torch.Tensor  # type: ignore[assignment]
                            written.__dict__.pop("successor", None)
        finally:
            # One whose value cannot be computed raises when it is read, and does not prevent writes of others.
            WAITING.extend(map(_kept, known))


def _share_memory(write: _Write) -> None:
    """Let the name that is bound to the new value have the memory of the tensor that it was written into."""
    value, target = write.value, write.target
    successor: Any = target.__dict__.get("successor")
    if getattr(successor, "value", None) is not value or value.shape.dtype is not target.dtype:
        return
    if target.stride() == value.shape.stride:
        value.keep_for_readers()
        value.take(plain(target))
        add_recorded(target, value.tensor)


def _kept(write: _Write) -> _Given:
    return lambda: write


def _kept_by_calls(write: _Write) -> _Given:
    """Return the inputs of a write as long as the calls of models that its value depends on can run."""
    calls = [each for each in sources_of(write.value) if each.signature.function is None and not each.done]
    for call in calls:
        call.kept = [*getattr(call, "kept", ()), write]
    return weakref.ref(write) if calls else _kept(write)
