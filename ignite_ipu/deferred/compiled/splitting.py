"""Batches of a loop cut by rows into the micro-batches of one device call, and the joining of their results.

A loss that is a mean over rows is the mean of the means over pieces of equal size; so are its gradients. The first
batch shows whether that holds for a loop: the host computes the whole and the pieces, and compares losses, gradients,
the returned values, and the buffers that forward writes.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Protocol, Sequence, Tuple

import torch
from torch import nn

from ignite_ipu.deferred.graph.step_graph import StepGraph
from ignite_ipu.errors import CaptureError, listed
from ignite_ipu.program.forward.randomness import draws_put_back
from ignite_ipu.program.host_weights import HostWeights
from ignite_ipu.program.tensors.raw import requires_grad
from ignite_ipu.torch_names.modules import DROPOUT, AnyBatchNorm
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass

Size = Tuple[int, ...]
Place = Tuple[int, int]
_TOLERANCE = 1e-4


class WholeStep(Protocol):
    """Update of a whole batch: a `CapturedStep`."""

    @property
    def model(self) -> nn.Module: ...
    @property
    def host_weights(self) -> HostWeights: ...
    def compute(self, leaves: Sequence[Any]) -> Tuple[List[List[Any]], Any]: ...


def _mean(pieces: torch.Tensor) -> torch.Tensor:
    return pieces.mean(0)


def _sum(pieces: torch.Tensor) -> torch.Tensor:
    return pieces.sum(0, dtype=pieces.dtype)


def _first(pieces: torch.Tensor) -> torch.Tensor:
    return pieces[0]


def _rows(pieces: torch.Tensor) -> torch.Tensor:
    return pieces.flatten(0, 1)


_OF_FLOATS = (_mean, _sum)
_OF_OTHERS = (_sum, _first)
Combine = Callable[[torch.Tensor], torch.Tensor]
"""Makes the value of the whole from those of its pieces, which are stacked."""


@dataclasses.dataclass(frozen=True)
class Split:
    """Split of each batch into micro-batches of equal size.

    Attributes:
        pieces: Number of micro-batches that a batch is cut into.
        rows: Rows of the batch.
        averages: Whether the loss is a mean over rows, else it is a sum.
        results: Functions that join the values of the pieces to those of the batch, in the order in which they come
            back.
    """

    pieces: int = 1
    rows: int = 0
    averages: bool = False
    results: Tuple[Combine, ...] = ()

    def cuts(self, size: Sequence[int]) -> bool:
        """Return whether an input of a size has a row for each sample."""
        return self.pieces > 1 and bool(size) and size[0] == self.rows

    def repeated(self, tensors: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        """Return the inputs of batches, each as often as its pieces read it; rows that are cut are read once."""
        if self.pieces == 1 or self.cuts(tensors[0].shape):
            return list(tensors)
        return [tensor for tensor in tensors for _ in range(self.pieces)]

    def part(self, output: torch.Tensor, result: int, size: Size, number: int, count: int) -> torch.Tensor:
        """Return the value of batch `number` of `count` from the returned values of all pieces."""
        combine = self.results[result]
        if combine is _rows:
            rows = output.shape[0] // count
            return output[number * rows : (number + 1) * rows]
        if tuple(output.shape) == size and combine is _first:
            return output  # a value that does not depend on the device comes back once for all
        return combine(output.reshape(count, self.pieces, *size)[number])


WHOLE = Split()
"""Batches that are their own micro-batches."""


def rows_of(graph: StepGraph) -> int:
    """Return the rows of a batch: those of the first tensor of the host that the model is given, else of any."""
    called = [step for step in graph.steps if step.function is None]
    sources = [source for step in called for source in step.leaves if isinstance(source, int) and source < 0]
    sizes = [graph.inputs[~source][0] for source in sources] + [size for size, _ in graph.inputs]
    return next((size[0] for size in sizes if size), 0)


def asked_split(graph: StepGraph, pieces: Optional[int], is_first: bool) -> Split:
    """Return the split of a graph's batches; a later batch whose rows do not divide is its own micro-batch.

    Raises:
        CaptureError: The rows of the first batch do not divide.
    """
    if pieces in (None, 1):
        return WHOLE
    rows = rows_of(graph)
    if rows % pieces == 0 and rows:
        return Split(pieces, rows)
    if not is_first:
        return WHOLE
    raise CaptureError(
        f"split_batch is {pieces}, but the batch has {rows} rows, which {pieces} does not divide. Choose a divisor of "
        "the batch size."
    )


def checked_split(
    step: WholeStep, leaves: Sequence[torch.Tensor], asked: Split, graph: StepGraph, outputs: Sequence[Place]
) -> Split:
    """Return a split with the functions that join results to those of a whole batch, checked on the host.

    Args:
        step: The update of one whole batch.
        leaves: The inputs of the batch.
        asked: How the batch is cut.
        graph: The operations of the batch.
        outputs: The results of these that come back.

    Raises:
        CaptureError: The pieces of the batch make another update than the whole, or the host cannot compare them.
    """
    _refuse_statistics(step.model, asked.pieces)
    size = asked.rows // asked.pieces
    parts = [
        [leaf[start : start + size] if asked.cuts(leaf.shape) else leaf for leaf in leaves]
        for start in range(0, asked.rows, size)
    ]
    with draws_put_back(), _without_dropout(step.model):
        whole = _Computed(step, leaves)
        again = _Computed(step, leaves)
        if not whole.is_close(again.loss, again.gradients):
            raise CaptureError(
                f"split_batch is {asked.pieces}, but the step draws random numbers outside of layers of dropout, so "
                "that pieces of a batch cannot be compared with the whole. Leave split_batch out, and accumulate "
                "smaller batches in the loop."
            )
        try:
            pieces = [_Computed(step, part) for part in parts]
        except Exception as error:
            raise CaptureError(
                f"split_batch is {asked.pieces}, but the step does not compute pieces of {size} of the {asked.rows} "
                f"rows: {type(error).__name__}: {error} Let it take the number of rows from its input (x.shape[0], -1)."
            ) from error
        if whole.writes:
            _refuse_other_buffers(step, whole.buffers, parts)
    count = len(pieces)
    loss = torch.stack([piece.loss for piece in pieces]).sum()
    gradients = [_total(each) for each in zip(*[piece.gradients for piece in pieces])]
    averages = whole.is_close(loss / count, [None if each is None else each / count for each in gradients])
    if not averages and not whole.is_close(loss, gradients):
        raise CaptureError(
            f"split_batch is {count}, but the loss of the first batch is {float(whole.loss):.6g}, the mean over its "
            f"pieces {float(loss) / count:.6g}, and their gradients differ likewise: the loss is no mean over rows. "
            "Leave split_batch out, and accumulate smaller batches in the loop."
        )
    found = [_combination(graph, place, whole, pieces) for place in outputs]
    # The loss of a piece is its share of the whole's already.
    return dataclasses.replace(asked, averages=averages, results=(_sum, *found))


class _Computed:
    """Loss, gradients and results that the host computes for the inputs of a batch or a piece of one."""

    def __init__(self, step: WholeStep, leaves: Sequence[torch.Tensor]) -> None:
        with DisableTorchFunctionSubclass():
            trained = [name for name, each in step.model.named_parameters() if requires_grad(each)]
        with step.host_weights.put_into(step) as (_, _, buffers), torch.enable_grad():
            before = [each.clone() for _, each in buffers]
            tensors: Dict[str, torch.Tensor] = dict(step.model.named_parameters())
            weights = [tensors[name].requires_grad_() for name in trained]
            results, loss = step.compute([leaf.clone() for leaf in leaves])
            found: Sequence[Optional[torch.Tensor]] = torch.autograd.grad(loss, weights, allow_unused=True)
        self.gradients = found
        self.loss = loss.detach()
        self.results = [[each.detach() for each in tensors] for tensors in results]
        self.buffers = dict(buffers)
        self.writes = any(not torch.equal(each, old) for (_, each), old in zip(buffers, before))

    def is_close(self, loss: torch.Tensor, gradients: Sequence[Optional[torch.Tensor]]) -> bool:
        """Return whether another loss and its gradients are these, but for rounding."""
        pairs = zip(self.gradients, gradients)
        return _close(self.loss, loss) and all(
            _close(mine, theirs) if mine is not None and theirs is not None else mine is theirs
            for mine, theirs in pairs
        )


def _combination(graph: StepGraph, place: Place, whole: _Computed, pieces: Sequence[_Computed]) -> Combine:
    operation, result = place
    expected = whole.results[operation][result]
    found = [piece.results[operation][result] for piece in pieces]
    if all(each.shape == found[0].shape for each in found):
        stacked = torch.stack(found)
        if expected.dim() and _close(_rows(stacked) if found[0].dim() else stacked, expected):
            return _rows
        for combine in _OF_FLOATS if expected.is_floating_point() else _OF_OTHERS:
            if _close(combine(stacked), expected):
                return combine
    node = graph.steps[operation]
    name = "the call of the model" if node.function is None else getattr(node.function, "__name__", "a function")
    raise CaptureError(
        f"split_batch is {len(pieces)}, but the loop keeps a result of {name.strip('_')} ({node.line}) that is no row "
        "for each sample, mean or sum of those of the pieces of a batch. Compute it under torch.no_grad() from "
        "returned values, or leave split_batch out."
    )


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.is_floating_point():
        return torch.equal(one, other)
    largest = float(one.abs().max()) if one.numel() else 0.0
    return torch.allclose(one, other, rtol=_TOLERANCE, atol=_TOLERANCE * largest + 1e-7, equal_nan=True)


def _total(gradients: Sequence[Optional[torch.Tensor]]) -> Optional[torch.Tensor]:
    found = [each for each in gradients if each is not None]
    return torch.stack(found).sum(0) if found else None


def _refuse_statistics(model: nn.Module, pieces: int) -> None:
    norms = [
        path or "the model"
        for path, each in model.named_modules()
        if isinstance(each, AnyBatchNorm) and (each.training or each.running_mean is None)
    ]
    if norms:
        raise CaptureError(
            f"split_batch is {pieces}, but {listed(norms)} normalises by the statistics of a batch, which differ "
            "between its pieces. Put batch normalisation into evaluation mode, or accumulate smaller batches in the "
            "loop, as in eager PyTorch."
        )


def _refuse_other_buffers(
    step: WholeStep, expected: Mapping[str, torch.Tensor], parts: Sequence[Sequence[torch.Tensor]]
) -> None:
    """Refuse a step whose calls write other values into buffers if they are made for pieces of a batch in turn."""
    with step.host_weights.put_into(step) as (_, _, buffers):
        for part in parts:
            step.compute([leaf.clone() for leaf in part])
    other = [name.partition(".")[2] for name, each in buffers if not _close(each, expected[name])]
    if other:
        raise CaptureError(
            f"split_batch is {len(parts)}, but forward writes into {listed(other)}, and {len(parts)} calls for pieces "
            "of a batch leave other values there than one call for the whole. Leave split_batch out, and accumulate "
            "smaller batches in the loop, as in eager PyTorch."
        )


@contextlib.contextmanager
def _without_dropout(model: nn.Module) -> Iterator[None]:
    active = [each for each in model.modules() if isinstance(each, DROPOUT) and each.training]
    for each in active:
        each.training = False
    try:
        yield
    finally:
        for each in active:
            each.training = True
