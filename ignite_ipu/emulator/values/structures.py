"""Structures of values: how they are taken apart and put together, and the types that users teach us.

Arguments, outputs and batches of a data loader may nest tensors in lists, tuples, named tuples, dictionaries and
every type that has a registered parser. `leaves` and `map_leaves` are for the calls of PyTorch's API, which know slices
and no parsers. Everything else is a leaf.
"""

from __future__ import annotations

import array
import copy
from abc import ABC, abstractmethod
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Type

import torch

from ignite_ipu.emulator.errors import python_error


class ICustomArgParser(ABC):
    """Teaches the emulator to find the tensors in a type and to rebuild a value of it from new tensors."""

    @abstractmethod
    def yieldTensors(self, struct: Any) -> Iterator[torch.Tensor]:
        """Yield every tensor of `struct`, in an order that depends on nothing but its type."""

    @abstractmethod
    def reconstruct(self, original_structure: Any, tensor_iterator: Iterator[torch.Tensor]) -> Any:
        """Return a value like `original_structure` holding the next tensors of `tensor_iterator`.

        It takes exactly as many tensors as `yieldTensors` yields, in the same order.
        """


_PARSERS: Dict[type, ICustomArgParser] = {}
_EXHAUSTED = object()
# The types that hold leaves.
_NESTED = (list, tuple, dict, slice)


def registerCustomArgParser(arg_data_type: Type[Any], arg_parser: Optional[ICustomArgParser]) -> None:
    """Use `arg_parser` for values of `arg_data_type` and its subclasses; `None` forgets the type.

    Raises:
        Error: The parser is no `ICustomArgParser`.
        TypeError: `arg_data_type` is not a class.
    """
    if not isinstance(arg_data_type, type):
        raise TypeError(
            f"registerCustomArgParser expects a class as its first argument, not {arg_data_type!r}. "
            "Pass the type of the values, for example type(batch)."
        )
    if arg_parser is None:
        _PARSERS.pop(arg_data_type, None)
        return
    if not isinstance(arg_parser, ICustomArgParser):
        raise python_error(
            f"Custom parser for {arg_data_type.__qualname__} must inherit from poptorch.ICustomArgParser; "
            f"got {arg_parser!r}. Pass an instance of a subclass, or None to forget the type."
        )
    _PARSERS[arg_data_type] = arg_parser


def registered_parsers() -> Dict[type, ICustomArgParser]:
    """Return a copy of the registry, in registration order."""
    return dict(_PARSERS)


def find_parser(value: Any) -> Optional[ICustomArgParser]:
    """Return the parser for `value`: its exact type's, else the first registered one that it is an instance of."""
    if not _PARSERS:
        return None
    parser = _PARSERS.get(type(value))
    return parser or next((parser for known, parser in _PARSERS.items() if isinstance(value, known)), None)


def flatten_tensors(structure: Any) -> List[torch.Tensor]:
    """Return every tensor in `structure`, depth first and in order; leaves that are no tensors are skipped."""
    parser = None if type(structure) is torch.Tensor else find_parser(structure)
    if parser is not None:
        return _custom_tensors(parser, structure)
    if isinstance(structure, torch.Tensor):
        return [structure]
    if not isinstance(structure, (dict, list, tuple)):
        return []
    items = structure.values() if isinstance(structure, dict) else structure
    return [tensor for item in items for tensor in flatten_tensors(item)]


def map_tensors(structure: Any, fn: Callable[[torch.Tensor], Any]) -> Any:
    """Return `structure` rebuilt with `fn(tensor)` in place of every tensor, called in the order of `flatten_tensors`.

    Containers keep their type (named tuples, dict and list subclasses with their attributes, registered types through
    their parser's `reconstruct`); other leaves are the same objects.
    """
    if type(structure) is torch.Tensor:
        return fn(structure)
    parser = find_parser(structure)
    if parser is not None:
        return _reconstruct(parser, structure, [fn(tensor) for tensor in _custom_tensors(parser, structure)])
    if isinstance(structure, torch.Tensor):
        return fn(structure)
    if isinstance(structure, (dict, list)):
        # A shallow copy keeps the additional parts of a subclass: a default factory, attributes, an order.
        rebuilt: Any = copy.copy(structure)
        for key, value in structure.items() if isinstance(structure, dict) else enumerate(structure):
            rebuilt[key] = map_tensors(value, fn)
        return rebuilt
    if isinstance(structure, tuple):
        return like(structure, [map_tensors(value, fn) for value in structure])
    return structure


def replace_tensors(structure: Any, tensors: Iterator[Any]) -> Any:
    """Return `structure` rebuilt with the next of `tensors` in place of each of its tensors, in flattening order."""
    return map_tensors(structure, lambda _: next(tensors))


def _custom_tensors(parser: ICustomArgParser, structure: Any) -> List[torch.Tensor]:
    tensors = list(parser.yieldTensors(structure))
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise python_error(
                f"{type(parser).__qualname__}.yieldTensors yielded {tensor!r} for a {type(structure).__qualname__}, "
                "which is not a torch tensor. Yield only tensors; keep other values in the original structure."
            )
    return tensors


def _reconstruct(parser: ICustomArgParser, structure: Any, tensors: List[Any]) -> Any:
    name, kind = f"{type(parser).__qualname__}.reconstruct", type(structure).__qualname__
    left = iter(tensors)
    try:
        rebuilt = parser.reconstruct(structure, left)
    except StopIteration:
        raise python_error(
            f"{name} took more tensors than yieldTensors yields for a {kind} ({len(tensors)}). Take one tensor for "
            "each that is yielded."
        ) from None
    # A leftover would silently become the first tensor of the next value on a real IPU.
    if next(left, _EXHAUSTED) is not _EXHAUSTED:
        raise python_error(
            f"{name} left tensors unused: yieldTensors yields {len(tensors)} for a {kind}. Take one tensor for each "
            "that is yielded."
        )
    return rebuilt


def leaves(value: Any) -> Iterator[Any]:
    """Yield everything in `value` that is no container, in order."""
    found: List[Any] = []
    _add_leaves([value], found)
    return iter(found)


def _add_leaves(values: Iterable[Any], found: List[Any]) -> None:
    for value in values:
        kind = type(value)  # isinstance() asks a weight for its class, once for each type
        if not issubclass(kind, _NESTED):
            found.append(value)
        elif issubclass(kind, dict):
            _add_leaves(value.values(), found)
        elif kind is slice:
            found += (value.start, value.stop, value.step)
        else:
            _add_leaves(value, found)


def map_leaves(value: Any, fn: Callable[[Any], Any]) -> Any:
    """Return `value` with `fn(leaf)` in place of every leaf."""
    kind = type(value)
    if not issubclass(kind, _NESTED):
        return fn(value)
    if issubclass(kind, dict):
        return {key: map_leaves(item, fn) for key, item in value.items()}
    if kind is slice:
        return slice(map_leaves(value.start, fn), map_leaves(value.stop, fn), map_leaves(value.step, fn))
    return like(value, [map_leaves(item, fn) for item in value])


def like(original: Any, items: List[Any]) -> Any:
    """Return a sequence of the type of `original`, a named tuple or one of PyTorch's return types included."""
    kind = type(original)
    return tuple(items) if kind is tuple else getattr(kind, "_make", kind)(items)


def listed(result: Any) -> List[torch.Tensor]:
    """Return the result of a function, a tensor or a sequence of them, as a list."""
    return [result] if isinstance(result, torch.Tensor) else list(result)


def frozen(value: Any) -> Any:
    """Return a leaf that is no tensor as it is now: a copy of an array, which could be written to later."""
    is_array = isinstance(value, (array.array, bytearray)) or hasattr(value, "__array_interface__")
    return copy.deepcopy(value) if is_array else value


def holds_tensors(value: Any) -> bool:
    """Return whether there is a tensor in `value`."""
    return any(isinstance(leaf, torch.Tensor) for leaf in leaves(value))
