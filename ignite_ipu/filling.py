"""Finds out whether the rows that fill up an incomplete batch change the predictions for its samples.

They do when a forward mixes the samples of a batch: batch normalisation without running statistics, a mean over the
batch, the similarities of all samples. No look at the model tells that, but the same samples with other filling do.
"""

from __future__ import annotations

import weakref
from typing import Any, Callable

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ignite_ipu.listing import listed
from ignite_ipu.programs import Program
from ignite_ipu.rows import RowsError, map_tensors, tensors_in

__all__ = ["FillingCheck"]


class FillingCheck:
    """Calls each program once more when it meets its first batch that has to be filled up."""

    def __init__(self) -> None:
        self._passed: weakref.WeakSet[Any] = weakref.WeakSet()
        # By program, a sample of its first batch without filling, to fill up with.
        self._samples: weakref.WeakKeyDictionary[Program, Any] = weakref.WeakKeyDictionary()

    def checked(self, program: Program, batch: Any, valid: int, call: Callable[[Any], Any]) -> Any:
        """Return what comes out of a program for the samples of a batch.

        Args:
            program: The program.
            batch: What it is called with.
            valid: Rows of `batch` that are no filling.
            call: Calls the program, and returns what comes out without what belongs to filling.

        Raises:
            RowsError: The predictions depend on the filling: the program's forward mixes the samples of a batch.
        """
        output = call(batch)
        if valid < (program.rows or 0):
            self._check(program, batch, valid, output, call)
        elif program not in self._samples:
            self._samples[program] = map_tensors(batch, lambda tensor: tensor[:1].clone() if tensor.dim() else tensor)
        return output

    def _check(self, program: Program, batch: Any, valid: int, output: Any, call: Callable[[Any], Any]) -> None:
        rows, executor = program.rows, program.executor
        assert rows is not None
        if executor in self._passed or valid % (rows // program.micro_batches) == 0:
            return  # whole micro-batches of filling are never mixed with samples
        sample = map_tensors(batch, lambda tensor: tensor[:1] if tensor.dim() else tensor)
        if _alike(sample, map_tensors(batch, lambda tensor: tensor[-1:] if tensor.dim() else tensor)):
            if program not in self._samples:
                return  # a single sample, and no other to fill up with
            sample = self._samples[program]
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


def _alike(one: Any, other: Any) -> bool:
    """Tell whether two structures hold the same numbers, but for what rounding does to them."""
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
        if isinstance(module, _BatchNorm) and module.running_mean is None
    ]
    why = f" ({listed(norms)} normalises by the batch: it keeps no running statistics)" if norms else ""
    return (
        f"An incomplete batch of {valid} samples was filled up to the {rows} rows of a device call, and the filling "
        f"changes the predictions for the samples: the forward of {type(model).__qualname__} mixes the samples of a "
        f"batch{why}. Evaluate with a batch_size that divides the number of samples, or leave the incomplete batch out "
        "with DataLoader(..., drop_last=True); or let the forward treat each sample by itself."
    )
