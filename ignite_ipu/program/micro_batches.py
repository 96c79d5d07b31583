"""Micro-batches of one device call, joined along their rows, and the part of each in a call's tensors.

A compiled program cuts every input of a call into micro-batches of equal size along dimension 0. Rows need not be
samples: the nodes of a graph and its edges are rows, too, as many as the micro-batch has of each.
"""

from __future__ import annotations

import itertools
import numbers
from typing import Any, Callable, List, Optional, Sequence, Tuple

import numpy as np
import torch

from ignite_ipu.errors import BatchError
from ignite_ipu.program.guards.values import Same
from ignite_ipu.program.objects import contents
from ignite_ipu.program.tensors.rows import row_count
from ignite_ipu.program.tensors.trees import PLAIN, Container, opened, opened_record, tensors_in


class PerMicroBatch:
    """A number in a batch, or a 0-dimensional tensor, that differs between the micro-batches of a call."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.numbers = not isinstance(values[0], torch.Tensor)
        tensor = torch.tensor(list(map(float, values))) if self.numbers else torch.stack(list(values))
        if self.numbers and all(isinstance(value, numbers.Integral) for value in values):
            tensor = torch.tensor(list(map(int, values)))
        # In a function, where those that look for the rows of a batch do not find it.
        self._held: Callable[[], torch.Tensor] = lambda: tensor

    def tensor(self) -> torch.Tensor:
        """Return the values, one for each micro-batch."""
        return self._held()


class NotJoined(BatchError):
    """Micro-batches that differ in more than their values."""


def join(micro_batches: Sequence[Any], name: str = "The batch") -> Any:
    """Return one structure whose tensors hold the rows of all micro-batches in order.

    Numbers that differ become a `PerMicroBatch`.

    Raises:
        NotJoined: They differ in their structure, in a value that is no number, or in the shape or type of a tensor
            apart from its rows. The message calls the structure by `name`.
    """
    return micro_batches[0] if len(micro_batches) == 1 else _Joining(PerMicroBatch).join(micro_batches, name)


def join_results(results: Sequence[Any], name: str) -> Any:
    """Return one structure as `join` does, 0-dimensional tensors stacked."""
    return results[0] if len(results) == 1 else _Joining(_stacked, stacks=True).join(results, name)


def join_to_show(micro_batches: Sequence[Any]) -> Any:
    """Return one structure as `join` does, for code that reads it.

    Numbers that differ become a tensor of them. Lists of strings and arrays are put together, as `collate_fn` would
    have made them of all samples.
    """
    return micro_batches[0] if len(micro_batches) == 1 else _Joining(_stacked, to_show=True).join(micro_batches, "")


def cut_shown(shown: Any, micro_batches: Sequence[Any]) -> List[Any]:
    """Return the part of each micro-batch in a result of `join_to_show`, in which code may have put other values.

    A value is cut as those in its place were joined, and a new one by samples. Values without rows go to each.

    Raises:
        NotJoined: It has another number of rows than they have together.
        RowsError: It has a new value, and micro-batches in which samples are not known.
    """
    return _Cutting(micro_batches).cut(shown, micro_batches)


class _Cutting:
    """Cuts a structure into parts, for these micro-batches."""

    def __init__(self, micro_batches: Sequence[Any]) -> None:
        self._micro_batches = micro_batches

    def cut(self, shown: Any, values: Sequence[Any]) -> List[Any]:
        """Return the parts of a value; `values` are in its place in the micro-batches, none if it is new."""
        if _rows(shown) is not None:
            return self._cut_rows(shown, values)
        is_leaf = type(shown) in PLAIN or isinstance(shown, torch.Tensor)
        container = None if is_leaf else opened(shown) or opened_record(shown)
        if container is None:
            # An object that code has changed is in the first micro-batch alone.
            kept = [value if value is shown or _has_same(value, shown) else shown for value in values]
            return kept or [shown] * len(self._micro_batches)
        make, opens = container.maker(), [opened(value) or opened_record(value) for value in values]
        tables = [{} if each is None else dict(zip(_keys(each), each.parts)) for each in opens]
        columns = [
            self.cut(part, [table[key] for table in tables] if all(key in table for table in tables) else [])
            for key, part in zip(_keys(container), container.parts)
        ]
        return list(map(make, zip(*columns))) if columns else [make([]) for _ in self._micro_batches]

    def _cut_rows(self, shown: Any, values: Sequence[Any]) -> List[Any]:
        rows, sizes = len(shown), list(map(_rows, values))
        if not values or None in sizes:
            if isinstance(shown, torch.Tensor) and rows == len(values) and all(map(_is_number, values)):
                return _cut_numbers(shown, values)
            sizes = list(map(row_count, self._micro_batches))
        ends = list(itertools.accumulate(size or 0 for size in sizes))
        if ends[-1] != rows:
            raise NotJoined(f"A value has {rows} rows, in the place of {ends[-1]}.")
        return [shown[start:end] for start, end in zip([0, *ends], ends)]


def _cut_numbers(shown: torch.Tensor, values: Sequence[Any]) -> List[Any]:
    """Return the number of each micro-batch: its own, of full precision, where the tensor of all still has it."""
    if all(isinstance(each, torch.Tensor) for each in values):
        return list(shown)
    triples = zip(values, shown.tolist(), _stacked(values).tolist())
    return [number if now == then else now for number, now, then in triples]


def _keys(container: Container) -> Sequence[Any]:
    return container.keys or range(len(container.parts))


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) or (isinstance(value, torch.Tensor) and not value.dim())


def _has_same(value: Any, other: Any) -> bool:
    if isinstance(value, torch.Tensor) and isinstance(other, torch.Tensor):
        return value.dtype is other.dtype and torch.equal(value, other)
    return _same(value, other)


def joined_or_listed(micro_batches: Sequence[Any]) -> Any:
    """Return one structure for code on the host as `join_results` does, or a list of them if they cannot be joined."""
    try:
        return shown(join_results(micro_batches, "The batch"))
    except NotJoined:
        return list(micro_batches)


def shown(structure: Any) -> Any:
    """Return a structure with a tensor of its values in the place of each `PerMicroBatch`."""
    return _replaced(structure, PerMicroBatch.tensor)


def holds_numbers(structure: Any) -> bool:
    """Return whether there is a `PerMicroBatch` in a structure."""
    return shown(structure) is not structure


def select(structure: Any, positions: Sequence[int], micro_batches: int) -> Any:
    """Return the micro-batches at these positions of a call's `micro_batches`, in this order."""
    index = torch.tensor(list(positions))

    def rows(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.dim():
            return tensor
        blocks = _blocks(tensor, micro_batches)
        return blocks[index].flatten(0, 1)

    return _replaced(structure, lambda value: value.tensor()[index], rows)


def split(structure: Any, micro_batches: int) -> List[Any]:
    """Return the micro-batches of a call's arguments or results, each with its part of every tensor's rows."""
    if micro_batches == 1:
        return [structure]

    def part(number: int) -> Any:
        def rows(tensor: torch.Tensor) -> torch.Tensor:
            return _blocks(tensor, micro_batches)[number] if tensor.dim() else tensor

        return _replaced(structure, lambda value: value.tensor()[number], rows)

    return list(map(part, range(micro_batches)))


def sample_count(parts: Sequence[Any]) -> int:
    """Return how many samples the parts of a batch have, such as inputs and targets.

    If all tensors have as many rows, these are samples. Else those of the last part are that has one number of rows,
    as the targets of graphs have, or else the smallest number is.
    """
    counts = [{tensor.shape[0] for tensor in tensors_in(part) if tensor.dim()} for part in parts]
    every = set().union(*counts)
    if len(every) == 1:
        return int(every.pop())
    single = [count for count in counts if len(count) == 1]
    return int(single[-1].copy().pop() if single else min(every, default=1))


class _Joining:
    """Joins values place by place; `numbers` joins the numbers of a place that differ.

    Args:
        numbers: Joins numbers and 0-dimensional tensors.
        stacks: Whether it joins 0-dimensional tensors that are alike, too.
        to_show: Whether lists of strings and arrays have rows.
    """

    def __init__(self, of_numbers: Callable[[Sequence[Any]], Any], stacks: bool = False, to_show: bool = False) -> None:
        self._of_numbers, self._stacks, self._to_show = of_numbers, stacks, to_show

    def join(self, values: Sequence[Any], path: str) -> Any:
        first = values[0]
        if isinstance(first, torch.Tensor) and all(isinstance(value, torch.Tensor) for value in values):
            return self._join_tensors(values, path)
        if all(isinstance(value, numbers.Real) and not isinstance(value, (bool, np.bool_)) for value in values):
            alike = all(type(value) is type(first) and value == first for value in values)
            return first if alike else self._of_numbers(values)
        if self._to_show and all(type(value) is type(first) for value in values) and _has_rows(first):
            if isinstance(first, np.ndarray):
                return np.concatenate(values)
            return type(first)(itertools.chain.from_iterable(values))
        container = None if type(first) in PLAIN else opened(first) or opened_record(first)
        return self._join_constants(values, path) if container is None else self._join_parts(values, path)

    def _join_constants(self, values: Sequence[Any], path: str) -> Any:
        first = values[0]
        other = next((value for value in values if value is not first and not _same(value, first)), first)
        if other is not first:
            raise NotJoined(f"{path} is {_named(first)} in one of them and {_named(other)} in another")
        return first

    def _join_parts(self, values: Sequence[Any], path: str) -> Any:
        opens = [opened(value) or opened_record(value) for value in values]
        containers = [each for each in opens if each is not None]
        kinds = {(type(each.value), each.keys, len(each.parts)) for each in containers}
        if len(kinds) > 1 or len(containers) < len(values):
            named = dict.fromkeys(f"a {type(value).__qualname__}" for value in values)
            raise NotJoined(f"{path} has other keys or another length in each: {', '.join(named)}")
        container = containers[0]
        keys = [repr(key) for key in container.keys] or [str(number) for number in range(len(container.parts))]
        columns = zip(*(each.parts for each in containers))
        return container.maker()([self.join(column, f"{path}[{key}]") for key, column in zip(keys, columns)])

    def _join_tensors(self, values: Sequence[torch.Tensor], path: str) -> Any:
        first = values[0]
        if any(value.dtype is not first.dtype for value in values):
            types = dict.fromkeys(str(value.dtype) for value in values)
            raise NotJoined(f"{path} has the types {', '.join(types)}")
        if any(value.shape[1:] != first.shape[1:] or value.dim() != first.dim() for value in values):
            raise NotJoined(f"{path} has the shapes {shapes_of(values)}")
        if first.dim():
            return torch.cat(list(values))
        alike = not self._stacks and all(value is first or torch.equal(value, first) for value in values)
        return first if alike else self._of_numbers(values)


def shapes_of(tensors: Sequence[torch.Tensor]) -> str:
    """Return the different shapes of tensors, the first few of many."""
    shapes = list(dict.fromkeys(str(tuple(tensor.shape)) for tensor in tensors))
    return ", ".join(shapes[:6]) + (" ..." if len(shapes) > 6 else "")


def _named(value: Any) -> str:
    if type(value) in PLAIN:
        return f"{value!r:.60}"
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"


def _stacked(values: Sequence[Any]) -> torch.Tensor:
    return PerMicroBatch(values).tensor()


def _rows(value: Any) -> Optional[int]:
    """Return the number of rows that `join_to_show` joins a value by; None for a value that has none."""
    if isinstance(value, torch.Tensor):
        return value.shape[0] if value.dim() else None
    return len(value) if _has_rows(value) else None


def _has_rows(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    return type(value) in (list, tuple) and bool(value) and all(type(each) in (str, bytes) for each in value)


def _same(value: Any, other: Any) -> bool:
    """Return whether code that reads both finds the same; tensors in objects are only the same as themselves."""
    if type(value) is not type(other):
        return False
    if type(value) in PLAIN:
        return bool(value == other)
    return bool(contents(value, Same) == contents(other, Same))


def _blocks(tensor: torch.Tensor, micro_batches: int) -> torch.Tensor:
    rows = tensor.shape[0]
    if rows % micro_batches:
        raise NotJoined(
            f"A tensor of shape {tuple(tensor.shape)} does not divide into {micro_batches} micro-batches of equal size."
        )
    return tensor.reshape(micro_batches, rows // micro_batches, *tensor.shape[1:])


def _replaced(
    value: Any, of_number: Callable[[PerMicroBatch], Any], of_tensor: Callable[[torch.Tensor], Any] = lambda each: each
) -> Any:
    if isinstance(value, torch.Tensor):
        return of_tensor(value)
    if isinstance(value, PerMicroBatch):
        return of_number(value)
    container = opened(value) or opened_record(value)
    if container is None:
        return value
    parts = [_replaced(part, of_number, of_tensor) for part in container.parts]
    if all(part is before for part, before in zip(parts, container.parts)):
        return value
    return container.maker()(parts)


Signature = Tuple[Any, ...]


def signature(structure: Any) -> Signature:
    """Return the shapes and types of the tensors in a structure."""
    return tuple([(tensor.shape, tensor.dtype) for tensor in tensors_in(structure)])


def first_micro_batch(leaves: Sequence[Any], micro_batches: int) -> List[Any]:
    """Return copies of the part of a call's arguments that its first micro-batch takes."""
    return [leaf[: len(leaf) // micro_batches].clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
