"""Rows of samples in nested structures of tensors: cut, padded, selected and joined.

Evaluation uses them to run batches of any size on a model with fixed shapes, training to find the labels that belong to
the predictions an output mode returns.
"""

from __future__ import annotations

import functools
from typing import Any, Iterator, Sequence, Tuple

import torch

from ignite_ipu.errors import RowsError
from ignite_ipu.program.tensors.trees import map_tensors, tensors_in


def row_count(structure: Any) -> int:
    """Return how many rows the tensors of a batch have; tensors without dimensions do not count."""
    counts = {tensor.shape[0] for tensor in tensors_in(structure) if tensor.dim()}
    if len(counts) == 1:
        return int(counts.pop())
    if not counts:
        raise RowsError(
            "The batch contains no tensor with rows, so it has no samples to count. "
            "prepare_batch can take tensors out of a class of your own."
        )
    raise RowsError(
        f"The tensors of the batch have different numbers of rows ({sorted(counts)}), so rows cannot be assigned to "
        "samples. Give each one row per sample."
    )


def split_rows(structure: Any, rows: int) -> Iterator[Tuple[Any, int]]:
    """Cut a batch into pieces of exactly `rows` rows, the last filled up by repeating its last row.

    Each comes with how many of its rows are samples rather than filling.
    """
    total = row_count(structure)
    if total == rows:
        yield structure, rows
        return
    for start in range(0, total, rows):
        valid = min(rows, total - start)
        yield map_tensors(structure, functools.partial(_piece, start=start, valid=valid, rows=rows)), valid


def take_rows(structure: Any, valid: int, rows: int) -> Any:
    """Return the first `valid` of the `rows` rows of a model's output, without the results of padding."""
    if valid == rows:
        return structure
    return map_tensors(structure, lambda tensor: _checked(tensor, rows)[:valid])


def join_rows(structures: Sequence[Any]) -> Any:
    """Return one structure whose tensors hold the rows of all the given ones in order; the inverse of `split_rows`."""
    if len(structures) == 1:
        return structures[0]
    columns = zip(*[tensors_in(structure) for structure in structures])
    tensors = map(join_tensors, columns)
    return map_tensors(structures[0], lambda _: next(tensors))


def join_tensors(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the rows of all tensors in order; those without dimensions are one row each."""
    return torch.cat(list(tensors)) if tensors[0].dim() else torch.stack(list(tensors))


def row_range(structure: Any, start: int, stop: int) -> Any:
    """Return the rows from `start` to before `stop` of every tensor; those without dimensions stay as they are."""
    return map_tensors(structure, lambda tensor: tensor[start:stop] if tensor.dim() else tensor)


def _piece(tensor: torch.Tensor, start: int, valid: int, rows: int) -> torch.Tensor:
    if not tensor.dim():
        return tensor
    piece = tensor[start : start + valid]
    if valid == rows:
        return piece
    filling = piece[-1:].expand(rows - valid, *piece.shape[1:])
    return torch.cat([piece, filling])


def _checked(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    if tensor.dim() and tensor.shape[0] == rows:
        return tensor
    raise RowsError(
        f"A tensor of shape {tuple(tensor.shape)} has not one row for each of the {rows} rows of the call, so rows "
        "cannot be picked from it. Return outputs with one row per sample (model_transform can drop others)."
    )
