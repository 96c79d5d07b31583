"""Farthest-point sampling and nearest-neighbour search over batches of points."""

from __future__ import annotations

import math
from typing import Any, List, Optional, Union

import torch

from ignite_ipu.emulator.errors import backend_error, python_error
from ignite_ipu.emulator.trace.active import Trace, active

_Batch = Optional[Union[List[int], torch.Tensor]]


def fps(src: torch.Tensor, ptr: List[int], ratio: float = 0.5, random_start: bool = False) -> torch.Tensor:
    """Return the rows that farthest-point sampling chooses: each is the farthest from those chosen before it.

    Args:
        src: Points, one a row.
        ptr: Where examples begin and end: example i is the rows `ptr[i]` to `ptr[i + 1] - 1`.
        ratio: Share of an example's points that are chosen, rounded up.
        random_start: Start from a random point rather than from an example's first.

    Raises:
        Error: A type or value is wrong.
        NotImplementedError: No wrapped model is being traced: there is no CPU implementation.
    """
    if not isinstance(src, torch.Tensor):
        raise python_error(f"fps must take a torch.tensor as src, got {src!r}.")
    if not isinstance(ptr, list):
        raise python_error(f"fps: ptr must be a list of ints, got {ptr!r}.")
    if len(ptr) < 2:
        raise python_error(f"fps: ptr must have at least 2 elements, got {ptr!r}.")
    if not isinstance(ratio, float):
        raise python_error(f"fps: ratio must be a float, got {ratio!r}.")
    if not isinstance(random_start, bool):
        raise python_error(f"fps: random_start must be a bool, got {random_start!r}.")
    trace = _trace("fps")
    rows = trace.traced(src).meta.shape[0]
    if not 0.0 < ratio <= 1.0:
        raise backend_error(f"fps: ratio must be above 0 and at most 1, got {ratio}.")
    if ptr[0] < 0 or ptr[-1] > rows or any(end < start for start, end in zip(ptr, ptr[1:])):
        raise backend_error(f"fps: ptr must rise from 0 to at most the number of points ({rows}), got {ptr}.")
    chosen = sum(math.ceil(ratio * (end - start)) for start, end in zip(ptr, ptr[1:]))
    return trace.record(_fps, src, list(ptr), ratio, random_start, result=lambda: _indices(chosen))


def nearest(x: torch.Tensor, y: torch.Tensor, batch_x: _Batch = None, batch_y: _Batch = None) -> torch.Tensor:
    """Return, for each row of `x`, the index of the closest row of `y` in the same example.

    Args:
        x, y: Points, one a row.
        batch_x, batch_y: The example that each point belongs to; None puts all into one.

    Raises:
        Error: A batch is neither list nor tensor; or, when the model runs, an example of `x` has no point in `y`.
        NotImplementedError: No wrapped model is being traced: there is no CPU implementation.
    """
    for name, batch in (("batch_x", batch_x), ("batch_y", batch_y)):
        if batch is not None and not isinstance(batch, (list, torch.Tensor)):
            raise python_error(f"nearest: batch_x and batch_y must be torch.Tensors or lists; {name} is {batch!r}.")
    trace = _trace("nearest")
    rows = trace.traced(x).meta.shape[0]
    return trace.record(_nearest, x, y, batch_x, batch_y, result=lambda: _indices(rows))


def _indices(count: int) -> torch.Tensor:
    return torch.empty(count, dtype=torch.int32, device="meta")


def _trace(name: str) -> Trace:
    trace = active()
    if trace is None:
        raise NotImplementedError(f"{name} has no CPU implementation: call it in the forward of a wrapped model.")
    return trace


def _fps(src: torch.Tensor, ptr: List[int], ratio: float, random_start: bool) -> torch.Tensor:
    chosen: List[int] = []
    points = src.reshape(src.shape[0], -1)
    for start, end in zip(ptr, ptr[1:]):
        count, example = math.ceil(ratio * (end - start)), points[start:end]
        if not count:
            continue
        current = int(torch.randint(end - start, ())) if random_start else 0
        distances = torch.full((end - start,), math.inf, dtype=example.dtype)
        for step in range(count):
            if step:
                current = int(distances.argmax())
            chosen.append(start + current)
            distances = torch.minimum(distances, (example - example[current]).square().sum(1))
    return torch.tensor(chosen, dtype=torch.int32)


def _nearest(x: torch.Tensor, y: torch.Tensor, batch_x: Any, batch_y: Any) -> torch.Tensor:
    points_x, points_y = x.reshape(x.shape[0], -1), y.reshape(y.shape[0], -1)
    differences = (points_x.unsqueeze(1) - points_y.unsqueeze(0)).square().sum(2)
    if batch_x is not None or batch_y is not None:
        examples_x, examples_y = _examples(batch_x, x.shape[0]), _examples(batch_y, y.shape[0])
        apart = examples_x.unsqueeze(1) != examples_y.unsqueeze(0)
        if bool(apart.all(1).any()):
            raise backend_error("nearest: some example has points in x but none in y, so that they have no neighbour.")
        differences = differences.masked_fill(apart, math.inf)
    return differences.argmin(1).to(torch.int32)


def _examples(batch: Any, rows: int) -> torch.Tensor:
    if batch is None:
        return torch.zeros(rows, dtype=torch.int64)
    return torch.as_tensor(batch).to(torch.int64)


_fps.__name__, _nearest.__name__ = "fps", "nearest"
