"""Items of an asynchronous loader: their allowed structures, and how they are rebuilt from the tensors of a slot."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any, List, Tuple

import torch

from ignite_ipu.emulator.values.structures import find_parser, flatten_tensors, map_tensors, replace_tensors

_TENSOR, _LIST, _DICT, _CUSTOM = "a tensor", "a list or tuple", "a dictionary", "a registered type"


@dataclass(frozen=True)
class ItemStructure:
    """Structure of an item around its tensors: its kind, names of its tensors, and keys of a dictionary."""

    kind: str
    names: Tuple[str, ...]
    keys: Tuple[Any, ...] = ()

    @classmethod
    def of(cls, item: Any) -> ItemStructure:
        """Return the structure of `item`."""
        if isinstance(item, torch.Tensor) and (type(item) is torch.Tensor or find_parser(item) is None):
            return cls(_TENSOR, ("item",))
        if find_parser(item) is not None:
            count = len(flatten_tensors(item))
            structure = cls(_CUSTOM, tuple(f"tensor {i} of {type(item).__qualname__}" for i in range(count)))
        elif isinstance(item, dict):
            structure = cls(_DICT, tuple(f"item[{key!r}]" for key in item), tuple(item))
        elif isinstance(item, (list, tuple)):
            structure = cls(_LIST, tuple(f"item[{i}]" for i in range(len(item))))
        else:
            raise _not_a_tensor("the item", item)
        if not structure.names:
            raise AssertionError(f"The item {item!r} holds no torch tensor; yield at least one.")
        return structure

    def tensors(self, item: Any) -> List[torch.Tensor]:
        """Return the tensors of `item`, which is built like the first one, in its order."""
        if self.kind == _TENSOR:
            parts = [item]
        elif self.kind == _CUSTOM:
            parts = list(flatten_tensors(item)) if find_parser(item) is not None else []
        elif self.kind == _DICT:
            if not isinstance(item, dict) or set(item) != set(self.keys):
                raise AssertionError(
                    f"The item has {_summary(item)}, but the first one was a dictionary with keys {list(self.keys)}. "
                    "Every item must have the same keys."
                )
            parts = [item[key] for key in self.keys]
        else:
            parts = list(item) if isinstance(item, (list, tuple)) else []
        if len(parts) != len(self.names):
            raise AssertionError(
                f"The item is {_summary(item)}, but the first one was {self.kind} of {len(self.names)} tensors. "
                "Every item must be built like the first."
            )
        for name, part in zip(self.names, parts):
            if not isinstance(part, torch.Tensor):
                raise _not_a_tensor(name, part)
        return parts

    def skeleton(self, item: Any) -> bytes:
        """Return the parts of `item` that `rebuild` needs besides its tensors; empty but for registered types."""
        if self.kind != _CUSTOM:
            return b""
        # A tensor that looks the same and pickles to almost nothing stands for each.
        valueless = map_tensors(item, lambda tensor: torch.zeros((), dtype=tensor.dtype).expand(tensor.shape))
        return pickle.dumps(valueless, protocol=pickle.HIGHEST_PROTOCOL)

    def rebuild(self, tensors: List[torch.Tensor], skeleton: bytes) -> Any:
        """Return an item over `tensors`: one of them, a list, a dictionary, or a value of the registered type."""
        if self.kind == _TENSOR:
            return tensors[0]
        if self.kind == _LIST:
            return tensors
        if self.kind == _DICT:
            return dict(zip(self.keys, tensors))
        return replace_tensors(pickle.loads(skeleton), iter(tensors))


def _not_a_tensor(name: str, value: Any) -> AssertionError:
    kind = type(value)
    return AssertionError(
        f"{name} has type {kind.__module__}.{kind.__qualname__}, which is not a torch tensor. An asynchronous loader "
        "takes a tensor, a flat list, tuple or dictionary of tensors, or a type with a parser registered through "
        "poptorch.registerCustomArgParser (in the worker process too). Convert the value in the data set or collate_fn."
    )


def _summary(item: Any) -> str:
    if isinstance(item, dict):
        return f"keys {list(item)}"
    length = f" and length {len(item)}" if isinstance(item, (list, tuple)) else ""
    return f"of type {type(item).__qualname__}{length}"
