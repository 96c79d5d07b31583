"""Functions of PyTorch that PopTorch has no operator for, computed by others that it has.

They are called while a forward is traced, so that a model or loss that uses them compiles, and gives PyTorch's numbers
but for rounding. Functions that PopTorch compiles are unchanged; `exact.py` has those that it compiles into others.
Source: PyTorch's documented formulas, and its kernels where they say more (`aten/src/ATen/native`).
"""

from __future__ import annotations

import functools
import math
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import nn

from ignite_ipu.capabilities.traced import NO_FUNCTION, WEIGHT
from ignite_ipu.errors import ForwardError
from ignite_ipu.program.forward.exact import EXACT_LAYERS, EXACT_TENSORS, EXACT_VALUES, diagonal_matrix, loss_by_name
from ignite_ipu.program.function_mode import FunctionContext
from ignite_ipu.program.traced_places import refusal_at
from ignite_ipu.program.user_code import current_line

Function = Callable[..., Any]


class Equivalents(FunctionContext):
    """Context in which functions that PopTorch does not compile are computed by others."""

    def concerns(
        self, func: Function, tensors: List[torch.Tensor], args: Tuple[Any, ...], kwargs: Dict[str, Any]
    ) -> bool:
        return func in _REPLACED

    def call(self, func: Function, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        equivalent = _REPLACED.get(func)
        return func(*args, **kwargs) if equivalent is None else equivalent(func, *args, **kwargs)


@loss_by_name
def _class_loss(func: Function, input: torch.Tensor, target: torch.Tensor, **asked: Any) -> torch.Tensor:
    """Compute cross entropy or NLL with class weights or smoothed labels; targets that are probabilities compile."""
    if input.dim() == 1 and not target.dim():
        loss: torch.Tensor = _class_loss(func, input.unsqueeze(0), target.unsqueeze(0), **asked)
        return loss.squeeze(0) if loss.dim() else loss
    if target.is_floating_point() or (asked["weight"] is None and not asked.get("label_smoothing")):
        return func(input, target, **asked)  # type: ignore[no-any-return]
    scores = F.log_softmax(input, _class_dimension(input)) if func is F.cross_entropy else input
    return _picked_loss(scores, target, **asked)


def _picked_loss(
    scores: torch.Tensor,
    target: torch.Tensor,
    weight: Optional[torch.Tensor],
    ignore_index: int,
    reduction: str,
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """Return the loss of log-probabilities `(N, C, ...)` at target classes `(N, ...)`.

    The mean is over the weights of the targets that are not ignored, for the smooth part, too.
    """
    classes = _class_dimension(scores)
    counted = target != ignore_index
    index = torch.where(counted, target, torch.zeros_like(target)).long()
    weights = counted.to(scores.dtype)
    if weight is not None:
        weights = weights * weight[index]
    loss = -scores.gather(classes, index.unsqueeze(classes)).squeeze(classes) * weights
    if label_smoothing:
        shape = [1] * scores.dim()
        shape[classes] = -1
        each = scores if weight is None else scores * weight.view(shape)
        smooth = -each.sum(classes) * counted.to(scores.dtype)
        loss = (1 - label_smoothing) * loss + label_smoothing / scores.shape[classes] * smooth
    if reduction == "none":
        return loss
    return loss.sum() / weights.sum() if reduction == "mean" else loss.sum()


def _huber_loss(
    func: Function,
    input: torch.Tensor,
    target: torch.Tensor,
    reduction: str = "mean",
    delta: float = 1.0,
    weight: Optional[torch.Tensor] = None,
) -> torch.Tensor:
    if weight is None:
        return delta * F.smooth_l1_loss(input, target, reduction=reduction, beta=delta)
    losses = delta * F.smooth_l1_loss(input, target, reduction="none", beta=delta) * weight
    if reduction == "none":
        return losses
    return losses.sum() / (weight.expand_as(losses).sum() if reduction == "mean" else 1)


def _class_dimension(scores: torch.Tensor) -> int:
    return min(1, scores.dim() - 1)


def _layer_norm(
    func: Function,
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: Optional[torch.Tensor] = None,
    bias: Optional[torch.Tensor] = None,
    eps: float = 1e-5,
    *others: Any,
) -> torch.Tensor:
    """Normalise with a weight and no bias, or a bias and no weight; PopTorch takes both or neither."""
    if (weight is None) == (bias is None):
        return func(input, normalized_shape, weight, bias, eps, *others)  # type: ignore[no-any-return]
    normal = func(input, normalized_shape, None, None, eps, *others)
    return normal + bias if weight is None else normal * weight  # type: ignore[no-any-return]


def _set_data(func: Function, tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Refuse to give a tensor other memory, where PopTorch does so in its words, or it is a weight.

    Raises:
        ForwardError: It is a weight.
    """
    if isinstance(tensor, nn.Parameter):
        raise ForwardError(refusal_at(WEIGHT, current_line().place, NO_FUNCTION, f"of shape {tuple(tensor.shape)}"))
    func(tensor, value)


def _lstm(func: Function, input: torch.Tensor, hx: Any, *rest: Any) -> Any:
    """Run each layer and direction of an LSTM as one of its own; PopTorch has one layer, one direction and biases."""
    if isinstance(hx, torch.Tensor):  # of packed sequences, whose sizes come before the states
        return func(input, hx, *rest)
    flat, has_biases, layers, dropout, training, bidirectional, batch_first = rest
    directions = 2 if bidirectional else 1
    each = 4 if has_biases else 2
    if (layers == directions == 1 and has_biases and not dropout) or len(flat) != each * layers * directions:
        return func(input, hx, *rest)
    time = 1 if batch_first and input.dim() == 3 else 0
    last: List[List[torch.Tensor]] = [[], []]
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            place = layer * directions + direction
            weights = list(flat[each * place : each * place + each])
            if not has_biases:
                weights += [weights[0].new_zeros(weights[0].shape[0])] * 2
            states = [state[place : place + 1] for state in hx]
            given = input.flip(time) if direction else input
            output, *now = func(given, states, weights, True, 1, 0.0, training, False, batch_first)
            outputs.append(output.flip(time) if direction else output)
            for kept, state in zip(last, now):
                kept.append(state)
        input = torch.cat(outputs, -1) if bidirectional else outputs[0]
        if dropout and layer < layers - 1:
            input = F.dropout(input, dropout, training)
    return (input, *map(torch.cat, last))


def _adaptive_avg_pool(func: Function, input: torch.Tensor, output_size: Any) -> torch.Tensor:
    """Average over windows of unlike sizes; PopTorch takes sizes that divide."""
    sizes = _sizes(func, input, output_size)
    if all(size % wanted == 0 for size, wanted in sizes):
        return func(input, output_size)  # type: ignore[no-any-return]
    for dimension, (size, wanted) in enumerate(sizes, input.dim() - len(sizes)):
        averages = torch.zeros(size, wanted, dtype=input.dtype)
        for place in range(wanted):
            begin, end = place * size // wanted, -(-(place + 1) * size // wanted)
            averages[begin:end, place] = 1 / (end - begin)
        input = (input.transpose(dimension, -1) @ averages.to(input.device)).transpose(dimension, -1)
    return input


def _adaptive_max_pool(func: Function, input: torch.Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """Take the maximum over windows of one size; others do not compile, nor do indices."""
    sizes = _sizes(func, input, output_size)
    if return_indices or any(size % wanted for size, wanted in sizes):
        return func(input, output_size, return_indices)
    shape = [*input.shape[: input.dim() - len(sizes)]]
    first = len(shape) + 1
    for size, wanted in sizes:
        shape += [wanted, size // wanted]
    return input.reshape(shape).amax(tuple(range(first, len(shape), 2)))


def _sizes(func: Function, input: torch.Tensor, output_size: Any) -> List[Tuple[int, int]]:
    """Return the size and the wanted size of each dimension that is pooled."""
    count = _POOLED[func]
    wanted = output_size if isinstance(output_size, (tuple, list)) else [output_size] * count
    return [(size, size if new is None else int(new)) for size, new in zip(input.shape[-count:], wanted)]


def _pad(func: Function, input: torch.Tensor, pad: Sequence[int], mode: str = "constant", value: Any = None) -> Any:
    """Pad by copies of the tensor; PopTorch has no circular padding, and gradients of constant padding alone."""
    if mode not in _PADDING or min(pad) < 0:
        return func(input, pad, mode, value)
    for number in range(len(pad) // 2):
        dimension, (before, after) = input.dim() - 1 - number, pad[2 * number : 2 * number + 2]
        first, last = _PADDING[mode](input, dimension, before, after)
        input = torch.cat([part for part in (first, input, last) if part.shape[dimension]], dimension)
    return input


def _wrapped(input: torch.Tensor, dimension: int, before: int, after: int) -> Tuple[torch.Tensor, torch.Tensor]:
    size = input.shape[dimension]
    return input.narrow(dimension, size - before, before), input.narrow(dimension, 0, after)


def _reflected(input: torch.Tensor, dimension: int, before: int, after: int) -> Tuple[torch.Tensor, torch.Tensor]:
    start = input.shape[dimension] - 1 - after
    return input.narrow(dimension, 1, before).flip(dimension), input.narrow(dimension, start, after).flip(dimension)


def _replicated(input: torch.Tensor, dimension: int, before: int, after: int) -> Tuple[torch.Tensor, torch.Tensor]:
    shape = [*input.shape]
    ends = (input.narrow(dimension, place, 1) for place in (0, shape[dimension] - 1))
    first, last = (
        end.expand(*shape[:dimension], count, *shape[dimension + 1 :]) for end, count in zip(ends, (before, after))
    )
    return first, last


_PADDING = {"circular": _wrapped, "reflect": _reflected, "replicate": _replicated}


def _channel_shuffle(func: Function, input: torch.Tensor, groups: int) -> torch.Tensor:
    batch, channels, *rest = input.shape
    return input.reshape(batch, groups, channels // groups, *rest).transpose(1, 2).reshape(input.shape)


def _triangle(func: Function, input: torch.Tensor, diagonal: int = 0) -> torch.Tensor:
    """Keep one triangle of the last two dimensions, by a mask that is a constant."""
    mask = func(torch.ones(*input.shape[-2:]), diagonal) > 0
    return torch.where(mask.to(input.device), input, torch.zeros_like(input))


def _diagonal(func: Function, input: torch.Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> torch.Tensor:
    """Take a diagonal by its places, which are constants."""
    rows, columns = input.shape[dim1], input.shape[dim2]
    first_row, first_column = max(0, -offset), max(0, offset)
    length = min(rows - first_row, columns - first_column)
    if length <= 0:
        return func(input, offset, dim1, dim2)  # type: ignore[no-any-return]
    places = torch.arange(length)
    flat = input.movedim((dim1, dim2), (-2, -1)).flatten(-2)
    return flat[..., ((places + first_row) * columns + places + first_column).to(input.device)]


def _index_add(
    func: Function, input: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *, alpha: float = 1
) -> torch.Tensor:
    return input.scatter_add(dim, _along(dim, index, source), source * alpha if alpha != 1 else source)


def _along(dim: int, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    shape = [1] * source.dim()
    shape[dim] = -1
    return index.view(shape).expand_as(source)


def _repeat_interleave(
    func: Function, input: torch.Tensor, repeats: Any, dim: Optional[int] = None, *, output_size: Optional[int] = None
) -> torch.Tensor:
    """Repeat elements a fixed number of times; a tensor of numbers needs `output_size`."""
    if not isinstance(repeats, int):
        return func(input, repeats, dim, output_size=output_size)  # type: ignore[no-any-return]
    if dim is None:
        input, dim = input.flatten(), 0
    dim = dim % input.dim()
    shape = [*input.shape]
    expanded = input.unsqueeze(dim + 1).expand(*shape[: dim + 1], repeats, *shape[dim + 1 :])
    return expanded.flatten(dim, dim + 1)


def _searchsorted(
    func: Function,
    sorted_sequence: torch.Tensor,
    input: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: Optional[str] = None,
    sorter: Optional[torch.Tensor] = None,
) -> torch.Tensor:
    """Count the elements of each sequence that are not behind a value; NaN is behind all of them."""
    values = input if isinstance(input, torch.Tensor) else torch.tensor(input)
    if sorter is not None:
        sorted_sequence = sorted_sequence.gather(-1, sorter)
    sequences = sorted_sequence.unsqueeze(-2) if sorted_sequence.dim() > 1 else sorted_sequence
    values = values.unsqueeze(-1)
    behind = sequences > values if right or side == "right" else sequences >= values
    places = sorted_sequence.shape[-1] - behind.long().sum(-1)
    return places.int() if out_int32 else places


def _logaddexp(base: float, func: Function, input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    scale = math.log(base)
    larger = torch.maximum(input, other) * scale
    both = [value.expand_as(larger) * scale for value in (input, other)]
    return torch.logsumexp(torch.stack(both), 0) / scale


def _logit(func: Function, input: torch.Tensor, eps: Optional[float] = None) -> torch.Tensor:
    input = input if eps is None else input.clamp(eps, 1 - eps)
    return torch.log(input / (1 - input))


def _xlogy(func: Function, input: Any, other: Any) -> torch.Tensor:
    """Return `input * log(other)`, 0 where the input is 0 and the other a number."""
    input, other = (value if isinstance(value, torch.Tensor) else torch.tensor(value) for value in (input, other))
    zero = (input == 0) & ~torch.isnan(other)
    # Where the result is 0 so is the gradient: no infinity gets into a product with 0.
    return torch.where(
        zero, torch.zeros_like(other), input * torch.log(torch.where(zero, torch.ones_like(other), other))
    )


def _nan_to_num(
    func: Function,
    input: torch.Tensor,
    nan: Optional[float] = None,
    posinf: Optional[float] = None,
    neginf: Optional[float] = None,
) -> torch.Tensor:
    if not input.is_floating_point():
        return input
    limits = torch.finfo(input.dtype)
    high, low = limits.max if posinf is None else posinf, limits.min if neginf is None else neginf
    input = input.masked_fill(torch.isnan(input), nan or 0.0)
    return input.masked_fill(input == math.inf, high).masked_fill(input == -math.inf, low)


def _written(
    plain: Function, equivalent: Function, func: Function, input: torch.Tensor, *args: Any, **kwargs: Any
) -> Any:
    """Write the result of the function without the underscore into its first argument."""
    # Of a copy, since gradients may need the previous values.
    return input.copy_(equivalent(plain, input.clone(), *args, **kwargs))


_POOLED: Dict[Function, int] = {
    getattr(F, f"adaptive_{kind}_pool{count}d"): count for kind in ("avg", "max") for count in (1, 2, 3)
}
_OF_LAYERS: Dict[str, Function] = {
    "cross_entropy": _class_loss,
    "nll_loss": _class_loss,
    "huber_loss": _huber_loss,
    "layer_norm": _layer_norm,
    **{f"adaptive_avg_pool{count}d": _adaptive_avg_pool for count in (1, 2, 3)},
    **{f"adaptive_max_pool{count}d": _adaptive_max_pool for count in (1, 2, 3)},
    "pad": _pad,
    "channel_shuffle": _channel_shuffle,
    **EXACT_LAYERS,
}
EQUIVALENTS: Dict[Function, Function] = {
    **{getattr(F, name): equivalent for name, equivalent in _OF_LAYERS.items()},
    torch.lstm: _lstm,
}
"""By function: what computes the same. It is called with the function and its arguments."""

_OF_TENSORS: Dict[str, Function] = {
    "tril": _triangle,
    "triu": _triangle,
    "diagonal": _diagonal,
    "diag": lambda func, input, diagonal=0: (
        diagonal_matrix(input, diagonal) if input.dim() == 1 else _diagonal(torch.diagonal, input, diagonal)
    ),
    "trace": lambda func, input: _diagonal(torch.diagonal, input).sum(),
    "index_add": _index_add,
    "index_copy": lambda func, input, dim, index, source: input.scatter(dim, _along(dim, index, source), source),
    "repeat_interleave": _repeat_interleave,
    "searchsorted": _searchsorted,
    "lerp": lambda func, input, end, weight: input + weight * (end - input),
    "logaddexp": functools.partial(_logaddexp, math.e),
    "logaddexp2": functools.partial(_logaddexp, 2),
    "logit": _logit,
    "xlogy": _xlogy,
    "nan_to_num": _nan_to_num,
    "exp2": lambda func, input: torch.exp(input * math.log(2)),
    "logical_xor": lambda func, input, other: (input != 0) != (other != 0),
    "hypot": lambda func, input, other: torch.sqrt(input * input + other * other),
    "addbmm": lambda func, input, batch1, batch2, *, beta=1, alpha=1: (
        beta * input + alpha * torch.bmm(batch1, batch2).sum(0)
    ),
    **EXACT_TENSORS,
}
for _name, _equivalent in {**_OF_TENSORS, **EXACT_VALUES}.items():
    for _owner in (torch, torch.Tensor, torch.special):
        if hasattr(_owner, _name):
            EQUIVALENTS[getattr(_owner, _name)] = _equivalent
        if hasattr(_owner, f"{_name}_") and _name not in EXACT_VALUES:
            EQUIVALENTS[getattr(_owner, f"{_name}_")] = functools.partial(_written, getattr(_owner, _name), _equivalent)
EQUIVALENTS[torch.linalg.diagonal] = lambda func, A, *, offset=0, dim1=-2, dim2=-1: _diagonal(
    torch.diagonal, A, offset, dim1, dim2
)
# With an assignment, which is no function of PyTorch's.
_REPLACED = {**EQUIVALENTS, torch.Tensor.data.__set__: _set_data}  # type: ignore[attr-defined]
