"""Finds out whether predictions change with the rows that pad a batch, or with the cuts in a larger batch.

They do if forward mixes the rows of a batch: batch normalisation without running statistics, a mean over the batch, or
the similarities of all samples. They also do if rows are steps in time, not samples. The model's code does not show
that, but a second evaluation of the same rows beside others does.
"""

from __future__ import annotations

import weakref
from typing import Any, Callable

import torch
from torch import nn

from ignite_ipu.errors import RowsError, listed
from ignite_ipu.program.tensors.rows import row_count, row_range
from ignite_ipu.program.tensors.trees import map_tensors, tensors_in
from ignite_ipu.session.program import ModelProgram
from ignite_ipu.torch_names.modules import AnyBatchNorm


class FillingCheck:
    """Calls each program once more when it meets its first batch that has to be filled up."""

    def __init__(self) -> None:
        self._passed: weakref.WeakSet[Any] = weakref.WeakSet()
        self._cuttable: weakref.WeakSet[Any] = weakref.WeakSet()
        # By program, a sample of its first batch without filling, to fill up with.
        self._samples: weakref.WeakKeyDictionary[ModelProgram, Any] = weakref.WeakKeyDictionary()

    def checked(self, program: ModelProgram, batch: Any, valid: int, call: Callable[[Any], Any]) -> Any:
        """Return `call(batch)` for one micro-batch of which all but the first `valid` rows are filling.

        `call` calls the program and drops its results for the padding.
        """
        output = call(batch)
        self.check(program, batch, valid, output, call)
        return output

    def check(self, program: ModelProgram, batch: Any, valid: int, output: Any, call: Callable[[Any], Any]) -> None:
        """Refuse a micro-batch whose filling changes the `output` for its first `valid` rows; see `checked`."""
        if valid < row_count(batch):
            self._check(program, batch, valid, output, call)
        else:
            self.keep_sample(program, batch)

    def keep_sample(self, program: ModelProgram, batch: Any) -> None:
        """Keep a sample of a program's first batch, to fill up with when a later batch has only one."""
        if program not in self._samples:
            self._samples[program] = map_tensors(row_range(batch, 0, 1), torch.clone)

    def may_cut(self, program: ModelProgram, batch: Any, call: Callable[[Any], Any]) -> bool:
        """Return whether a larger micro-batch may be cut into pieces of a program's size, of which this is one."""
        executor, rows = program.executor, row_count(batch)
        if executor in self._cuttable:
            return True
        if rows == 1:
            return False
        half = rows // 2
        output = call(batch)
        if any(not tensor.dim() or len(tensor) != rows for tensor in tensors_in(output)):
            return False
        # The last rows at another place, and beside others.
        moved = call(map_tensors(batch, lambda tensor: _moved(tensor, half)))
        alike = _alike(map_tensors(output, lambda each: each[-half:]), map_tensors(moved, lambda each: each[:half]))
        if not alike and _alike(output, call(batch)):
            return False
        if not _alike(row_range(batch, 0, 1), row_range(batch, rows - 1, rows)):
            self._cuttable.add(executor)
        return True

    def _check(self, program: ModelProgram, batch: Any, valid: int, output: Any, call: Callable[[Any], Any]) -> None:
        rows, executor = row_count(batch), program.executor
        if executor in self._passed:
            return
        sample, filling = row_range(batch, 0, 1), row_range(batch, rows - 1, rows)
        if _alike(sample, filling):
            sample = self._samples.get(program, sample)
            if _alike(sample, filling):
                return  # there is no other sample to fill up with
        if not _alike(output, call(_refilled(batch, valid, sample))) and _alike(output, call(batch)):
            raise RowsError(_message(program.step.model, valid, rows))
        self._passed.add(executor)


def _refilled(batch: Any, valid: int, sample: Any) -> Any:
    samples = iter(tensors_in(sample))

    def refill(tensor: torch.Tensor) -> torch.Tensor:
        filling = next(samples)
        if not tensor.dim():
            return tensor
        return torch.cat([tensor[:valid], filling.expand(len(tensor) - valid, *tensor.shape[1:])])

    return map_tensors(batch, refill)


def _moved(tensor: torch.Tensor, half: int) -> torch.Tensor:
    if not tensor.dim():
        return tensor
    return torch.cat([tensor[-half:], tensor[:1].expand(len(tensor) - half, *tensor.shape[1:])])


def _alike(one: Any, other: Any) -> bool:
    """Return whether two structures hold the same numbers, except for rounding."""
    return all(map(_close, tensors_in(one), tensors_in(other)))


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    if not one.is_floating_point():
        return torch.equal(one, other)
    tolerance = 1e-5 if one.dtype in (torch.float32, torch.float64) else 1e-2
    largest = float(one.double().abs().nan_to_num(0.0, 0.0, 0.0).max()) if one.numel() else 0.0
    return torch.allclose(one.double(), other.double(), rtol=tolerance, atol=tolerance * largest, equal_nan=True)


def _message(model: nn.Module, valid: int, rows: int) -> str:
    norms = [
        path or "the model"
        for path, module in model.named_modules()
        if isinstance(module, AnyBatchNorm) and module.running_mean is None
    ]
    why = f" ({listed(norms)} normalises by the batch: it keeps no running statistics)" if norms else ""
    return (
        f"An incomplete batch of {valid} samples was filled up to the {rows} rows of a micro-batch, and the filling "
        f"changes the predictions for the samples: the forward of {type(model).__qualname__} mixes the samples of a "
        f"batch{why}. Evaluate with a batch_size that divides the number of samples, or leave the incomplete batch out "
        "with DataLoader(..., drop_last=True); or let the forward treat each sample by itself."
    )
