"""Values that forward computes from no input and no weight: the host computes them beside the trace, for code to read.

A trace has no values, so PopTorch refuses code that reads one. A table of positions, or a count of the inputs' shapes,
depends on no data. It is the same in every call of the program, and PopTorch folds it into a constant. A buffer that
forward does not write, such as a flag, is a constant, too. Python values and buffers that constants are made of are
guarded: other values need another program.

Tensors of the trace stay as they are. With each constant comes a tensor of the host, for which the same functions are
called. Writes go into both. A constant that other values are written into has no value from there on.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, FrozenSet, Iterable, List, Mapping, Optional, Set, Tuple

import torch

from ignite_ipu.errors import ForwardError
from ignite_ipu.operators.words import word_set
from ignite_ipu.program.argument_checks import passing_value
from ignite_ipu.program.function_mode import FunctionContext, writes_first
from ignite_ipu.program.guards.values import is_left_behind
from ignite_ipu.program.tensors.described import AS, LIKE, VALUE_READS
from ignite_ipu.program.tensors.trees import map_tensors, tensors_in
from ignite_ipu.program.user_code import Line, current_line
from ignite_ipu.torch_names.tensors import DisableTorchFunction

_HOST = torch.device("cpu")
_IPU = "ipu"
_MOST_ELEMENTS = 2**24
# Functions that return a Python value or an array of a tensor's values.
_READS = VALUE_READS | word_set("__format__ __repr__ __str__")
# Functions that return tensors whose shapes depend on values.
_BY_VALUES = word_set(
    "nonzero argwhere masked_select unique unique_consecutive bincount histc combinations repeat_interleave"
)
# Functions that take whole numbers, also as tensors without dimensions.
_NUMBERS = word_set(
    "__getitem__ __setitem__ narrow select view reshape expand repeat tile unflatten topk chunk split roll"
)
_JOINED = word_set("cat concat concatenate hstack vstack dstack row_stack column_stack")
_ACCESSORS = word_set("__get__ __set__ __delete__")
# Functions of these names do more than read tensors, or take arguments of the host.
_BY_NAME = _READS | LIKE | AS | _NUMBERS | _JOINED | {"repeat_interleave"}
_WRITTEN = word_set("inplace out")
_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_Args = Tuple[Any, ...]
_Kwargs = Dict[str, Any]


class HostConstants(FunctionContext):
    """Answers reads of constants in its `with` block, where a model is traced.

    Args:
        buffers: Buffers of the model in the trace by name, with their values on the host.
        read: Gets the names of the buffers whose values decide on the trace, with the line that reads each first.

    Attributes:
        refusal: The last error for a read of a value that the trace does not have; the code may have caught it.
    """

    def __init__(self, buffers: Mapping[str, Tuple[torch.Tensor, torch.Tensor]], read: Dict[str, Line]) -> None:
        super().__init__()
        # By `id` of the tensor in the trace, which is kept with its value.
        self._known: Dict[int, Tuple[torch.Tensor, torch.Tensor]] = {}
        self._read = read
        # The buffers that each memory of the host has its values from.
        self._sources: Dict[int, FrozenSet[str]] = {}
        self.refusal: Optional[Exception] = None
        self._unknown: Set[int] = set()  # memory that was written with values that the host has not got
        for name, (tensor, value) in buffers.items():
            own = value.clone()
            self._known[id(tensor)] = tensor, own
            self._sources[_memory(own)] = frozenset([name])

    def concerns(self, func: Callable[..., Any], tensors: List[torch.Tensor], args: _Args, kwargs: _Kwargs) -> bool:
        name = getattr(func, "__name__", "")
        if name in _ACCESSORS:
            return False
        if name in _BY_NAME or writes_first(name) or not kwargs.keys().isdisjoint(_WRITTEN):
            return True
        return all([self._value(tensor) is not None for tensor in tensors])

    def call(self, func: Callable[..., Any], args: _Args, kwargs: _Kwargs) -> Any:
        name = getattr(func, "__name__", "")
        if name in _ACCESSORS:
            return func(*args, **kwargs)
        if name in _JOINED:
            args = _without_empty(args)
        tensors = tensors_in((args, kwargs))
        values = list(map(self._value, tensors[:1] if name in AS else tensors))
        if all(value is not None for value in values) or name in LIKE:
            return self._constant(func, name, args, kwargs)
        if name == "__bool__":
            passing = passing_value(current_line())
            if passing is not None:
                return passing
        self._note_writes(name, args, kwargs)
        if tensors:
            func, args, kwargs = self._repeated(func, name, self._with_numbers(name, args), kwargs)
        try:
            return func(*args, **kwargs)
        except Exception as error:
            if name in _READS and tensors:
                self.refusal = error
            raise

    def value_of(self, tensor: torch.Tensor) -> Optional[torch.Tensor]:
        """Return the values that eager PyTorch has for a tensor of the trace; None if they depend on a call's data."""
        value = self._known.get(id(tensor), (None, None))[1]
        known = value is not None and not self._sources.get(_memory(value)) and _memory(value) not in self._unknown
        return value if known else None

    def _value(self, tensor: torch.Tensor) -> Optional[torch.Tensor]:
        """Return the values of a constant, None for results of the device."""
        if tensor.device.type != _IPU:
            if is_left_behind(tensor):
                raise ForwardError(
                    f"The forward reads at {current_line()} a tensor that another call, as one in the other mode, has "
                    "stored in an attribute. Programs of a device share weights and buffers alone. Make it a buffer of "
                    "that shape (register_buffer(..., persistent=False)), and assign it values without gradients."
                )
            own = tensor.device.type == "cpu" and not tensor.requires_grad
            value = tensor if own else None
        else:
            value = self._known.get(id(tensor), (None, None))[1]
        return None if value is None or _memory(value) in self._unknown else value

    def _note_read(self, values: Iterable[torch.Tensor]) -> None:
        for value in values:
            for name in self._sources.get(_memory(value), frozenset()) - self._read.keys():
                self._read[name] = current_line()

    def _constant(self, func: Callable[..., Any], name: str, args: _Args, kwargs: _Kwargs) -> Any:
        """Return the result of a call that depends on constants alone, and remember its values."""
        found = self._on_host(func, name, args, kwargs)
        if found is None:
            self._note_writes(name, args, kwargs)
            return func(*args, **kwargs)
        (value,) = found
        values = tensors_in(value)
        tensors = tensors_in((args, kwargs))
        read = tensors[:1] if name in AS else tensors
        given = [each for each in map(self._value, read) if each is not None]
        sources = frozenset().union(*[self._sources.get(_memory(each), frozenset()) for each in given])
        on_ipu = any(tensor.device.type == _IPU for tensor in tensors) or name in LIKE
        if not values:
            if not (on_ipu and name in _READS):
                return func(*args, **kwargs)
            self._note_read(given)
            return value
        if any(not each.numel() for each in values):
            self._note_read(given)
            return value  # an IPU has no such tensors
        if on_ipu and _depends_on_values(name, args, kwargs):
            self._note_read(given)
            return map_tensors(value, self._moved_in)
        result = func(*args, **kwargs)
        results = tensors_in(result)
        if len(results) == len(values):
            for tensor, each in zip(results, values):
                self._learn(tensor, each, sources)
        return result

    def _on_host(self, func: Callable[..., Any], name: str, args: _Args, kwargs: _Kwargs) -> Optional[Tuple[Any]]:
        """Return, in a tuple, the result of a call with values of the host; None where it has none, or draws some.

        Draws from a generator of the forward's own are values: it is seeded by each call, or another guard refuses it.
        """
        if kwargs.get("out") is not None:
            return None
        generators = [(each, each.get_state()) for each in kwargs.values() if isinstance(each, torch.Generator)]
        made = not tensors_in((args, kwargs))

        def value_of(tensor: torch.Tensor) -> torch.Tensor:
            value = self._value(tensor)
            if value is None:  # its shape and type count alone
                shape, dtype = tuple(tensor.shape), tensor.dtype
                with DisableTorchFunction():
                    return torch.empty(shape, dtype=dtype, device=_HOST)
            return value

        given, named = map_tensors((args, kwargs), value_of)
        given = tuple([_HOST if _names_ipu(each) else each for each in given])
        named = {key: _HOST if _names_ipu(each) else each for key, each in named.items()}
        before = torch.get_rng_state()
        with DisableTorchFunction():
            try:
                if made and "device" not in named:
                    result = _made(func, given, named)
                else:
                    result = func(*given, **named)
            except Exception:
                return None  # PyTorch raises it in the trace, too, or PopTorch one of its own
            finally:
                drew = not torch.equal(before, torch.get_rng_state())
                if drew:
                    torch.set_rng_state(before)
                for generator, state in generators:
                    generator.set_state(state)
            if drew or any(each.numel() > _MOST_ELEMENTS or each.requires_grad for each in tensors_in(result)):
                return None
        return (result,)

    def _learn(self, tensor: torch.Tensor, value: torch.Tensor, sources: FrozenSet[str] = frozenset()) -> None:
        if tensor.device.type == _IPU and tuple(tensor.shape) == tuple(value.shape):
            self._known[id(tensor)] = tensor, value
            if sources:
                self._sources[_memory(value)] = sources | self._sources.get(_memory(value), frozenset())

    def _moved_in(self, value: torch.Tensor) -> torch.Tensor:
        tensor = value.to(f"{_IPU}:0")
        self._learn(tensor, value)
        return tensor

    def _note_writes(self, name: str, args: _Args, kwargs: _Kwargs) -> None:
        """Forget the values of constants that a call writes other values into."""
        written: List[Any] = [*args[:1]] if writes_first(name) or kwargs.get("inplace") else []
        for tensor in tensors_in([*written, kwargs.get("out")]):
            value = self._known.get(id(tensor), (None, None))[1]
            if value is not None:
                self._unknown.add(_memory(value))

    def _with_numbers(self, name: str, args: _Args) -> _Args:
        """Return arguments with numbers for constants without dimensions, and with places for constant masks."""
        if name not in _NUMBERS:
            return args
        if name not in ("__getitem__", "__setitem__"):
            return (args[0], *map_tensors(args[1:], self._number))
        parts: List[Any] = []
        for part in args[1] if isinstance(args[1], tuple) else (args[1],):
            value = self._value(part) if isinstance(part, torch.Tensor) else None
            if value is not None and value.dtype is torch.bool and value.dim() and name == "__getitem__":
                self._note_read([value])
                with DisableTorchFunction():
                    places = value.nonzero(as_tuple=True)
                parts += map(self._moved_in, places)
            elif isinstance(part, slice):
                parts.append(slice(*[self._number(each) for each in (part.start, part.stop, part.step)]))
            else:
                parts.append(self._number(part))
        index = tuple(parts) if isinstance(args[1], tuple) or len(parts) > 1 else parts[0]
        return (args[0], index, *args[2:])

    def _number(self, leaf: Any) -> Any:
        value = self._value(leaf) if isinstance(leaf, torch.Tensor) else None
        if value is None or value.dim() or value.dtype not in _WHOLE:
            return leaf
        self._note_read([value])
        with DisableTorchFunction():
            return int(value)

    def _repeated(
        self, func: Callable[..., Any], name: str, args: _Args, kwargs: _Kwargs
    ) -> Tuple[Callable[..., Any], _Args, _Kwargs]:
        """Return the selection that repeats rows by constant counts, in the place of `repeat_interleave`."""
        given = {**dict(zip(("input", "repeats", "dim"), args)), **kwargs}
        counts = given.get("repeats")
        value = self._value(counts) if name == "repeat_interleave" and isinstance(counts, torch.Tensor) else None
        if value is None:
            return func, args, kwargs
        self._note_read([value])
        dim, tensor = given.get("dim"), given["input"]
        tensor, dim = (tensor.flatten(), 0) if dim is None else (tensor, dim)
        with DisableTorchFunction():
            rows = torch.arange(tensor.shape[dim])
            places = torch.repeat_interleave(rows, value.expand(len(rows)) if value.numel() == 1 else value)
        return torch.index_select, (tensor, dim, self._moved_in(places)), {}


def _made(func: Callable[..., Any], args: _Args, kwargs: _Kwargs) -> Any:
    """Return the result of a function without tensor arguments, on the host for any default device."""
    try:
        return func(*args, **{**kwargs, "device": _HOST})
    except TypeError:  # it takes no device
        return func(*args, **kwargs)


def _names_ipu(value: Any) -> bool:
    return str(value).split(":")[0] == _IPU if isinstance(value, (torch.device, str)) else False


def _memory(value: torch.Tensor) -> int:
    return value.untyped_storage().data_ptr()


def _depends_on_values(name: str, args: _Args, kwargs: _Kwargs) -> bool:
    """Return whether values decide the shape of a call's result, as a mask in an index does."""
    if name in _BY_VALUES or (name == "where" and len(args) + len(kwargs) == 1):
        return True
    index = args[1] if name == "__getitem__" else ()
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, torch.Tensor) and part.dtype is torch.bool for part in parts)


def _without_empty(args: _Args) -> _Args:
    """Return the arguments of a function that joins tensors without those that have no elements."""
    parts = args[0] if args else ()
    if not isinstance(parts, (list, tuple)) or all(not isinstance(each, torch.Tensor) for each in parts):
        return args
    empty = [each for each in parts if isinstance(each, torch.Tensor) and not each.numel()]
    rest = [each for each in parts if not any(each is other for other in empty)]
    if not empty or not rest:
        return args
    dtype = rest[0].dtype
    for each in parts:
        dtype = torch.promote_types(dtype, each.dtype)
    return ([each if each.dtype is dtype else each.to(dtype) for each in rest], *args[1:])
