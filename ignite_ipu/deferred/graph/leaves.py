"""Leaves of recorded operations that are no operation's results: tensors of the host, and numbers."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import dis
import linecache
import sys
import weakref
from types import FrameType
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple

import torch
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

from ignite_ipu.deferred.graph.owners import Captured
from ignite_ipu.errors import CaptureError
from ignite_ipu.program.tensors.raw import plain
from ignite_ipu.program.user_code import Line, is_users_file, variables_of
from ignite_ipu.torch_names.modules import buffers_of
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass, version_of

_META = torch.device("meta")
# By a written tensor: tensors that share its memory for recorded operations. It outlives none of them.
_RECORDED: Any = WeakTensorKeyDictionary()
# Before PyTorch 2.1 no storage shows whether PyTorch owns its memory; then no memory counts as PyTorch's.
is_resizable: Callable[[Any], bool] = getattr(torch.UntypedStorage, "resizable", lambda storage: False)


@dataclasses.dataclass(eq=False)
class Shape:
    """Properties of a tensor that has not been computed; it requires gradients if it depends on trainable weights.

    `aliases` is True if it may share memory with an operand.
    """

    size: Tuple[int, ...]
    stride: Tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool
    aliases: bool = False

    def __post_init__(self) -> None:
        self.key = (self.size, self.stride, self.dtype, self.requires_grad)

    @classmethod
    def of(cls, tensor: torch.Tensor, requires_grad: bool, aliases: bool = False) -> Shape:
        return cls(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, requires_grad, aliases)

    def meta(self) -> torch.Tensor:
        """Return a tensor like this on the meta device."""
        tensor = torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=_META)
        return tensor.requires_grad_() if self.requires_grad else tensor

    def empty(self) -> torch.Tensor:
        """Return a tensor like this on the host, for a function that takes no values of it."""
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype)


def recorded_of(tensor: torch.Tensor) -> List[weakref.ref[torch.Tensor]]:
    """Return the tensors that share the memory of a written one for recorded operations, which follow its versions."""
    return [each for each in _RECORDED.get(tensor, ()) if each() is not None]


def add_recorded(tensor: torch.Tensor, sharer: torch.Tensor) -> None:
    """Note that recorded operations have the memory of a written tensor by another one."""
    _RECORDED[tensor] = [*recorded_of(tensor), weakref.ref(sharer)]


class Number:
    """A Python number in an arithmetic operation of floats, which may change from step to step."""

    __slots__ = ("value",)

    def __init__(self, value: float) -> None:
        self.value = value


class Input:
    """A tensor of the host that a recorded operation reads; writes into it before the step has run are refused.

    Attributes:
        parameter, model: Its name as a parameter or buffer of a captured model, and the model; None for any other
            tensor.
        weight: The trained weight of which the tensor is a copy, made before an update or before its model was known;
            None for all others.
        spent: Line where the value was computed, with gradients, if the tensor is a value whose update has run.
        differentiated: Whether the loss is differentiated with respect to the tensor, which is no weight.
        writes: How often the tensor, if it is no parameter or buffer, had been written into.
    """

    __slots__ = ("_original", "_shape", "differentiated", "model", "parameter", "spent", "tensor", "weight", "writes")

    def __init__(
        self,
        tensor: torch.Tensor,
        shape: Optional[Shape] = None,
        parameter: Optional[str] = None,
        model: Optional[Captured] = None,
    ) -> None:
        self.tensor = tensor
        self._shape = shape
        self.parameter = parameter
        self.model = model
        self.weight: Optional[torch.Tensor] = None
        self.spent: Optional[Line] = None
        self.differentiated = False
        self.writes = version_of(tensor) if parameter is None else 0
        # The original of a copy, and its version at that time.
        self._original: Optional[Tuple[torch.Tensor, int]] = None

    @property
    def changed(self) -> bool:
        """True if the tensor that this is a copy of was written into since."""
        if self._original is None:
            return False
        with DisableTorchFunctionSubclass():  # values to come may have been written into it
            return version_of(self._original[0]) != self._original[1]

    @property
    def is_buffer(self) -> bool:
        """True for a buffer of a captured model."""
        return self.model is not None and not issubclass(type(self.tensor), nn.Parameter)

    @property
    def shape(self) -> Shape:
        if self._shape is None:
            self._shape = Shape.of(self.tensor, False)
        return self._shape

    def set_aside(self, value: torch.Tensor) -> None:
        """Keep a copy of the weight's value for the operation, since the weight is about to change or has done so."""
        self.weight, self.tensor = self.tensor, plain(value).clone()
        self.parameter = self.model = None
        self.writes = version_of(self.tensor)

    def belong(self, parameter: str, model: Captured, operation: Any) -> None:
        """Be a weight again, for a loss that an operation computes from the copy.

        If it has other values by now, a buffer or a frozen parameter stays a constant: gradients depend on no later
        write that PyTorch counts. For all others the loop has to know the previous value.
        """
        weight, copy, loop = self.weight, self.tensor, model.loop
        assert weight is not None
        loop.reads.show_weights(())
        same = torch.equal(plain(weight), copy)
        uncounted = not same and loop.reads.was_written_uncounted(weight, operation)
        if not (same or self.shape.requires_grad or uncounted):
            self.weight = None
            return
        refusal = (
            f"The loss was computed at {operation.line} from the weight {parameter}, which was updated or written "
            "since. The device computes a loss and its update together, from the weights of the update. Compute values "
            "that depend on weights anew for each update; or detach() them, for constants."
        )
        if uncounted and self.shape.requires_grad:
            raise CaptureError(refusal)  # autograd may have saved either memory
        if not same:
            loop.updates.leave_device(refusal, CaptureError(refusal))
        self.tensor, self.weight, self.parameter, self.model = weight, None, parameter, model
        then = [] if same else [value for each, value in loop.reads.weights_then(operation) or () if each is weight]
        if not (same or any(value is not None and torch.equal(value, copy) for value in then)):
            self.set_aside(copy)
            raise CaptureError(refusal)

    def check(self, line: Line, late: bool = False) -> None:
        """Refuse a tensor that was written into since a line recorded it.

        It is `late` if the host computes with it, for a read value that is no part of the loss.
        """
        if self.parameter is not None:
            return
        if type(self.tensor) is not torch.Tensor and not self.differentiated:
            # Operations recorded before `tensor += loss` read the previous value, which its memory still has.
            with DisableTorchFunctionSubclass():
                written, self.tensor = self.tensor, self.tensor.detach()
            add_recorded(written, self.tensor)
        if version_of(self.tensor) != self.writes:
            use = f"A tensor of shape {self.shape.size} was used"
            change = f"changed in place afterwards{_described_writes(self.tensor)}"
            if late:
                raise CaptureError(
                    f"{use} at {line} for a value that is no part of the loss, and {change}. Such a value is computed "
                    "when it is first read, and now its tensor holds something else. Read the value before you write "
                    "into the tensor, as by item() right after optimizer.step(); or compute it from tensor.clone()."
                )
            raise CaptureError(
                f"{use} in the training step at {line} and {change}, before the step ran with optimizer.step(). Change "
                "a copy of it, or change it after optimizer.step()."
            )

    def keep(self, copies: Dict[int, torch.Tensor], every: bool = False) -> None:
        """Copy memory that is not PyTorch's, as a numpy array's, in which others write without its notice; or `every`.

        Those that were made before are in `copies`, by `id` of the tensor.
        """
        tensor = self.tensor
        if self.parameter is not None or type(tensor) is not torch.Tensor or version_of(tensor) != self.writes:
            return
        if every or not is_resizable(tensor.untyped_storage()):
            self._original = tensor, version_of(tensor)
            copy = copies.get(id(tensor))
            self.tensor = copies[id(tensor)] = tensor.clone() if copy is None else copy
            self.writes = version_of(self.tensor)


def weights_among(leaves: Iterable[Any]) -> Iterator[Input]:
    """Yield the leaves that are parameters of captured models."""
    for leaf in leaves:
        if type(leaf) is Input and leaf.parameter is not None and not leaf.is_buffer:
            yield leaf


def _described_writes(tensor: torch.Tensor) -> str:
    """Return where functions of the user's that are running write into a tensor, as words to follow "changed in place".

    Code that has returned, and writes through names that it alone had, is not found.
    """
    frame: Optional[FrameType] = sys._getframe(1)
    lines: List[str] = []
    while frame is not None:
        if is_users_file(frame.f_code.co_filename):
            lines += [f"{frame.f_code.co_filename}:{line}" for line in sorted(set(_lines(frame, tensor)))]
        frame = frame.f_back
    return f" at {' or '.join(lines)}" if lines else " (through another name, or in a function that has returned)"


def _lines(frame: FrameType, tensor: torch.Tensor) -> Iterator[int]:
    try:
        tree = ast.parse("".join(linecache.getlines(frame.f_code.co_filename, frame.f_globals)))
    except SyntaxError:
        return  # it was edited while it ran
    lines, variables = {line for _, line in dis.findlinestarts(frame.f_code)}, variables_of(frame)
    for node in ast.walk(tree):
        if getattr(node, "lineno", None) in lines and any(_holds(each, variables, tensor) for each in _written(node)):
            yield node.lineno  # type: ignore[attr-defined]


def _written(node: ast.AST) -> List[ast.expr]:
    """Return the expressions that a statement or a call writes into, if they are tensors."""
    if isinstance(node, ast.AugAssign):
        return [node.target]
    if isinstance(node, ast.Assign):
        return [target for target in node.targets if isinstance(target, ast.Subscript)]
    if not isinstance(node, ast.Call):
        return []
    out = [keyword.value for keyword in node.keywords if keyword.arg == "out"]
    if isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_"):
        return [*out, node.func.value, *node.args[:1]]  # a method, or a function such as `init.normal_(tensor)`
    return out


def _holds(node: ast.AST, variables: Mapping[str, Any], tensor: torch.Tensor) -> bool:
    """Return whether an expression is a tensor with the memory of another, or a view of such, `x.data.view(-1)[0]`."""
    found = _value(node, variables)
    if type(found) is torch.Tensor:
        return found.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
    inner = node.func if isinstance(node, ast.Call) else getattr(node, "value", None)
    return isinstance(inner, ast.AST) and _holds(inner, variables, tensor)


def _value(node: ast.AST, variables: Mapping[str, Any]) -> Any:
    """Return the value of names, plain attributes and constant keys without running code; None for other nodes."""
    if isinstance(node, ast.Name):
        return variables.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = _value(node.value, variables)
        own = getattr(owner, "__dict__", {})
        return own.get(node.attr, buffers_of(owner).get(node.attr) if isinstance(owner, nn.Module) else None)
    if isinstance(node, ast.Subscript):
        owner, key = _value(node.value, variables), getattr(node.slice, "value", None)
        key = getattr(key, "value", key)  # Python 3.8 has a node in between
        if type(owner) in (dict, list, tuple) and isinstance(key, (int, str)):
            with contextlib.suppress(LookupError, TypeError):
                return owner[key]
    return None
