"""Functions of PyTorch that PopTorch compiles into others, for some arguments or values, and exact replacements.

`docs/operators.md` has PopTorch's behaviour for each, partly by its sources alone. Computed by other operators they are
PyTorch's whether a doubt is justified or not. Source: as for `equivalents.py`.
"""

from __future__ import annotations

import inspect
import math
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F

Function = Callable[..., Any]

_MOST_COUNTED = 2**24  # PopTorch counts in float32


def loss_by_name(compute: Function) -> Function:
    """Call a function with all arguments of a loss by name, and with the reduction for PyTorch's two older ones."""

    def call(func: Function, *args: Any, **kwargs: Any) -> Any:
        bound = inspect.signature(func).bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        average, reduce = given.pop("size_average"), given.pop("reduce")
        if (average, reduce) != (None, None):
            given["reduction"] = "none" if reduce is False else "sum" if average is False else "mean"
        return compute(func, **given)

    return call


def _gelu(func: Function, input: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    """Compute GELU by the error function; PopTorch's always has the form with tanh."""
    if approximate != "none":
        return func(input, approximate=approximate)  # type: ignore[no-any-return]
    return input * 0.5 * (1 + torch.erf(input * math.sqrt(0.5)))


def _celu(func: Function, input: torch.Tensor, alpha: float = 1.0, inplace: bool = False) -> torch.Tensor:
    if alpha == 1:
        return func(input, alpha, inplace)  # type: ignore[no-any-return]
    result = alpha * F.elu(input / alpha)
    return input.copy_(result) if inplace else result


@loss_by_name
def _binary_cross_entropy(
    func: Function, input: torch.Tensor, target: torch.Tensor, weight: Optional[torch.Tensor], reduction: str
) -> torch.Tensor:
    """Compute binary cross entropy with logarithms of at least -100, as saturated sigmoids give them."""
    loss = -(target * _log(input) + (1 - target) * _log(1 - input))
    loss = loss if weight is None else loss * weight
    return loss if reduction == "none" else loss.sum() if reduction == "sum" else loss.mean()


def _log(value: torch.Tensor) -> torch.Tensor:
    zero = value <= 0
    # Where it is zero no infinity may get into a product, backwards, too.
    return torch.where(
        zero, torch.full_like(value, -100.0), torch.log(torch.where(zero, torch.ones_like(value), value))
    )


@loss_by_name
def _kl_div(
    func: Function, input: torch.Tensor, target: torch.Tensor, reduction: str, log_target: bool
) -> torch.Tensor:
    if reduction != "batchmean":
        return func(input, target, reduction=reduction, log_target=log_target)  # type: ignore[no-any-return]
    return F.kl_div(input, target, reduction="sum", log_target=log_target) / input.shape[0]


def _avg_pool(
    func: Function,
    input: torch.Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Optional[int] = None,
) -> torch.Tensor:
    """Average with a stride that is named, and paddings and a divisor of the user's own."""
    stride = kernel_size if stride is None else stride
    if isinstance(padding, (tuple, list)) and len(set(padding)) > 1 and count_include_pad and not ceil_mode:
        input, padding = F.pad(input, [size for size in reversed(padding) for _ in range(2)]), 0
    if divisor_override is None or ceil_mode:
        return func(input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)  # type: ignore[no-any-return]
    dimensions = 3 if func is F.avg_pool3d else 2
    sizes = tuple(kernel_size) if isinstance(kernel_size, (tuple, list)) else (kernel_size,)
    window = math.prod(sizes if len(sizes) == dimensions else sizes * dimensions)
    averages: torch.Tensor = func(input, kernel_size, stride, padding, ceil_mode, True)
    return averages * (window / divisor_override)  # type: ignore[no-any-return]


def _max_pool(
    func: Function, input: torch.Tensor, kernel_size: Any, stride: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """Pool with a stride that is named."""
    return func(input, kernel_size, kernel_size if stride is None else stride, *args, **kwargs)


def _div(func: Function, input: Any, other: Any, *, rounding_mode: Optional[str] = None) -> torch.Tensor:
    """Divide integers into floats, and round as the argument requires."""
    whole = _are_whole(input, other)
    if rounding_mode is None:
        return func(input.to(torch.get_default_dtype()) if whole else input, other)  # type: ignore[no-any-return]
    if rounding_mode == "trunc":
        return func(input, other, rounding_mode="trunc") if whole else torch.trunc(input / other)
    if whole:
        quotient = func(input, other, rounding_mode="trunc")
        return quotient - ((quotient * other != input) & ((input < 0) != (other < 0))).to(quotient.dtype)  # type: ignore[no-any-return]
    # PyTorch's: the floor of a quotient is off where that is rounded up to a whole number.
    rest = torch.fmod(input, other)
    quotient = (input - rest) / other
    quotient = quotient - ((rest != 0) & ((other < 0) != (rest < 0))).to(quotient.dtype)
    floor = torch.floor(quotient)
    return floor + (quotient - floor > 0.5).to(floor.dtype)  # type: ignore[no-any-return]


def _floor_divide(func: Function, input: Any, other: Any) -> torch.Tensor:
    """Divide whole numbers downwards, negative ones too; PopTorch divides them towards 0."""
    return _div(torch.div, input, other, rounding_mode="floor") if _are_whole(input, other) else func(input, other)


def _are_whole(*values: Any) -> bool:
    kinds = [value.dtype if isinstance(value, torch.Tensor) else type(value) for value in values]
    return all(kind in (int, bool) or getattr(kind, "is_floating_point", True) is False for kind in kinds)


def _of_floats(func: Function, input: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    """Compute a function of whole numbers in floats; PopTorch converts none."""
    given = input if input.is_floating_point() else input.to(torch.get_default_dtype())
    return func(given, **kwargs)  # type: ignore[no-any-return]


def _in_type(func: Function, input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Compute in the requested type, by converting first."""
    dtype = kwargs.pop("dtype", None)
    return func(input if dtype is None else input.to(dtype), *args, **kwargs)  # type: ignore[no-any-return]


def _from_front(func: Function, input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Name a dimension by its number from the front."""
    order = ("dim", "index", "value") if func.__name__ == "index_fill" else ("indices", "dim")
    given = {**dict(zip(order, args)), **kwargs}
    if given.get("dim") is not None:
        given["dim"] %= input.dim()
    return func(input, **given)  # type: ignore[no-any-return]


def _group_norm(
    func: Function, input: torch.Tensor, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> torch.Tensor:
    """Normalise groups of channels that have no dimensions behind them."""
    if input.dim() != 2:
        return func(input, num_groups, weight, bias, eps)  # type: ignore[no-any-return]
    groups = input.reshape(len(input), num_groups, -1)
    normal = F.layer_norm(groups, groups.shape[2:], eps=eps).flatten(1)
    normal = normal if weight is None else normal * weight
    return normal if bias is None else normal + bias


@loss_by_name
def _smooth_l1_loss(
    func: Function, input: torch.Tensor, target: torch.Tensor, reduction: str, beta: float
) -> torch.Tensor:
    if beta:
        return func(input, target, reduction=reduction, beta=beta)  # type: ignore[no-any-return]
    return F.l1_loss(input, target, reduction=reduction)


def _round(func: Function, input: torch.Tensor, *, decimals: int = 0) -> torch.Tensor:
    if not decimals:
        return func(input)  # type: ignore[no-any-return]
    scale = float(10 ** abs(decimals))
    return torch.round(input * scale) / scale if decimals > 0 else torch.round(input / scale) * scale


def _index_put(
    func: Function, input: torch.Tensor, indices: Sequence[Any], values: torch.Tensor, accumulate: bool = False
) -> torch.Tensor:
    """Add values at places, of which some may be the same."""
    if not accumulate or any(index is None or not _is_whole(index) for index in indices):
        return func(input, indices, values, accumulate)  # type: ignore[no-any-return]
    places: Any = 0
    for size, index in zip(input.shape, torch.broadcast_tensors(*indices)):  # type: ignore[no-untyped-call]
        places = places * size + torch.where(index < 0, index + size, index)
    rest = input.shape[len(indices) :]
    flat = input.reshape(-1, *rest)
    source = values.expand(*places.shape, *rest).reshape(-1, *rest)
    where = places.reshape(-1, *[1] * len(rest)).expand_as(source)
    return flat.scatter_add(0, where, source).reshape(input.shape)


def _taken(func: Function, input: torch.Tensor, index: Any) -> Any:
    return func(input, _counted_from_front(input, index))


def _counted_from_front(input: torch.Tensor, index: Any) -> Any:
    """Return an index in whose lists no number counts from the end; PopTorch reads them as they are."""
    parts = list(index) if isinstance(index, tuple) else [index]
    if not any(isinstance(part, list) and any(type(each) is int and each < 0 for each in part) for part in parts):
        return index
    # Dimensions behind an ellipsis are counted from the last one.
    behind = next((place for place, part in enumerate(parts) if part is ...), len(parts))
    for places, step in ((range(behind), 1), (range(len(parts) - 1, behind, -1), -1)):
        dimension = 0 if step > 0 else input.dim() - 1
        for place in places:
            part = parts[place]
            if isinstance(part, list) and all(type(number) is int for number in part):
                size = input.shape[dimension]
                parts[place] = [number + size if -size <= number < 0 else number for number in part]
            is_mask = isinstance(part, torch.Tensor) and part.dtype is torch.bool
            dimension += step * (part.dim() if is_mask else part is not None)
    return tuple(parts)


def _write_under_mask(func: Function, input: torch.Tensor, index: Any, value: Any) -> None:
    """Write values where a mask is true, if it has not the tensor's shape or they are several."""
    index = _counted_from_front(input, index)
    mask = index[0] if isinstance(index, tuple) and len(index) == 1 else index
    is_mask = isinstance(mask, torch.Tensor) and mask.dtype is torch.bool
    if not is_mask or (mask.dim() == input.dim() and (not isinstance(value, torch.Tensor) or value.numel() == 1)):
        func(input, index, value)
    else:
        rest = input.shape[mask.dim() :]
        value = value if isinstance(value, torch.Tensor) else torch.full((), value, dtype=input.dtype).to(input.device)
        input.copy_(_under_mask(input, mask.reshape(*mask.shape, *[1] * len(rest)), value, len(rest)))


def _under_mask(input: torch.Tensor, mask: torch.Tensor, value: torch.Tensor, row: int) -> torch.Tensor:
    """Return `input` with a value, or the next one of several in the first dimension, where the mask is true.

    Values have at most `row` dimensions, or several of these.
    """
    if value.dim() > row and len(value) > 1:
        places = mask.reshape(-1).float().cumsum(0).int().clamp(1, len(value)) - 1
        value = value[places].reshape(*mask.shape[: mask.dim() - row], *value.shape[1:])
    elif value.dim() > row:
        value = value[0]
    return torch.where(mask, value.to(input.dtype), input)


def _masked_scatter(func: Function, input: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    if mask.dim() > input.dim() or input.numel() > _MOST_COUNTED:
        return func(input, mask, source)  # type: ignore[no-any-return]
    return _under_mask(input, mask.expand_as(input), source.reshape(-1), 0)


def _is_whole(index: torch.Tensor) -> bool:
    return not index.is_floating_point() and index.dtype not in (torch.bool, torch.uint8)


def _spread(power: float, func: Function, input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Compute a variance (`power` 1) or standard deviation (0.5) with any correction of the number of values."""
    correction = kwargs.get("correction")
    if correction in (None, 0, 1):
        return func(input, *args, **kwargs)  # type: ignore[no-any-return]
    dim = args[0] if args else kwargs.get("dim")
    count = _count(input, dim)
    if count <= max(correction, 1):
        return func(input, *args, **kwargs)  # type: ignore[no-any-return]
    found: torch.Tensor = func(input, *args, **{**kwargs, "correction": 1})
    return found * float(((count - 1) / (count - correction)) ** power)


def _count(input: torch.Tensor, dim: Any) -> int:
    dims = range(input.dim()) if dim is None or dim == () else [dim] if isinstance(dim, int) else dim
    return math.prod(input.shape[each] for each in dims)


def _spread_and_mean(
    spread: Function, func: Function, input: torch.Tensor, *args: Any, **kwargs: Any
) -> Tuple[torch.Tensor, torch.Tensor]:
    if not kwargs.get("keepdim") and kwargs.get("correction") in (None, 0, 1):
        return func(input, *args, **kwargs)  # type: ignore[no-any-return]
    power = 0.5 if spread is torch.std else 1.0
    dim = args[0] if args else kwargs.get("dim")
    dims = tuple(range(input.dim())) if dim is None else dim
    return _spread(power, spread, input, *args, **kwargs), input.mean(dims, kwargs.get("keepdim", False))


def _of_all(func: Function, input: torch.Tensor, dim: Any = None, keepdim: bool = False) -> torch.Tensor:
    """Reduce over everything to a tensor without dimensions."""
    if dim not in (None, (), []) or keepdim:
        return func(input, dim, keepdim)  # type: ignore[no-any-return]
    return func(input.reshape(-1), 0)  # type: ignore[no-any-return]


def diagonal_matrix(input: torch.Tensor, offset: int = 0) -> torch.Tensor:
    """Return matrices `(..., m, m)` with vectors `(..., n)` on a diagonal."""
    square = input.unsqueeze(-1) * torch.eye(input.shape[-1], dtype=input.dtype).to(input.device)
    return F.pad(square, (offset, 0, 0, offset) if offset > 0 else (0, -offset, -offset, 0)) if offset else square


def _aminmax(func: Function, input: torch.Tensor, *, dim: Any = None, keepdim: bool = False) -> Any:
    both: Any = [_of_all(each, input, dim, keepdim) for each in (torch.amin, torch.amax)]
    return torch.return_types.aminmax(both)


def _quantile(
    func: Function,
    input: torch.Tensor,
    q: Any,
    dim: Any = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
) -> torch.Tensor:
    """Interpolate between two places of the sorted values, for a number that is known."""
    if not isinstance(q, (int, float)) or interpolation != "linear" or (dim is None and keepdim):
        return func(input, q, dim, keepdim, interpolation=interpolation)  # type: ignore[no-any-return]
    if dim is None:
        input, dim = input.reshape(-1), 0
    ordered = torch.sort(input, dim).values
    place = q * (input.shape[dim] - 1)
    low, high = (ordered.narrow(dim, each, 1) for each in (math.floor(place), math.ceil(place)))
    result = low + (high - low) * (place - math.floor(place))
    return result if keepdim else result.squeeze(dim)  # type: ignore[no-any-return]


def _sign_bit(func: Function, input: torch.Tensor) -> torch.Tensor:
    return (input < 0) | ((input == 0) & (1 / input < 0))


def _copysign(func: Function, input: torch.Tensor, other: Any) -> torch.Tensor:
    negative = _sign_bit(func, other) if isinstance(other, torch.Tensor) else torch.tensor(math.copysign(1, other) < 0)
    size = input.abs()
    return torch.where(negative.to(input.device), -size, size)


def _either(choose: Function, func: Function, input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the result of `choose` for two numbers, or the other one if one is none."""
    first, second = (torch.where(torch.isnan(a), b, a) for a, b in ((input, other), (other, input)))
    return choose(first, second)  # type: ignore[no-any-return]


def _sinc(func: Function, input: torch.Tensor) -> torch.Tensor:
    zero = input == 0
    angle = math.pi * torch.where(zero, torch.ones_like(input), input)
    return torch.where(zero, torch.ones_like(input), torch.sin(angle) / angle)


EXACT_LAYERS: Dict[str, Function] = {
    "gelu": _gelu,
    "celu": _celu,
    "logsigmoid": lambda func, input: -F.softplus(-input),  # also where the sigmoid is zero in float32
    "binary_cross_entropy": _binary_cross_entropy,
    "kl_div": _kl_div,
    "smooth_l1_loss": _smooth_l1_loss,
    "group_norm": _group_norm,
    **{f"avg_pool{count}d": _avg_pool for count in (2, 3)},
    **{f"max_pool{count}d": _max_pool for count in (1, 2, 3)},
}
"""By their names in `torch.nn.functional`."""

EXACT_TENSORS: Dict[str, Function] = {
    **dict.fromkeys(("div", "divide", "true_divide"), _div),
    "round": _round,
    **dict.fromkeys(("index_fill", "take_along_dim"), _from_front),
    "floor_divide": _floor_divide,
    "rsub": lambda func, input, other, *, alpha=1: func(input * alpha if alpha != 1 else input, other),
    "index_put": _index_put,
    "var": lambda *args, **kwargs: _spread(1.0, *args, **kwargs),
    "std": lambda *args, **kwargs: _spread(0.5, *args, **kwargs),
    "var_mean": lambda *args, **kwargs: _spread_and_mean(torch.var, *args, **kwargs),
    "std_mean": lambda *args, **kwargs: _spread_and_mean(torch.std, *args, **kwargs),
    **dict.fromkeys(("argmax", "argmin", "amax", "amin"), _of_all),
    "diag_embed": lambda func, input, offset=0, dim1=-2, dim2=-1: diagonal_matrix(input, offset).movedim(
        (-2, -1), (dim1, dim2)
    ),
    "diagflat": lambda func, input, offset=0: diagonal_matrix(input.reshape(-1), offset),
    "aminmax": _aminmax,
    "quantile": _quantile,
    "signbit": _sign_bit,
    "copysign": _copysign,
    "fmax": lambda *args: _either(torch.maximum, *args),
    "fmin": lambda *args: _either(torch.minimum, *args),
    "sgn": lambda func, input: torch.sign(input),
    "sinc": _sinc,
    "masked_scatter": _masked_scatter,
    "heaviside": lambda func, input, values: torch.where(
        input == 0, values.to(input.dtype), (input > 0).to(input.dtype)
    ),
    "isposinf": lambda func, input: input == math.inf,
    "isneginf": lambda func, input: input == -math.inf,
    # In their order, which is one of those that may come without.
    "topk": lambda func, input, k, dim=-1, largest=True, sorted=True: func(input, k, dim, largest),
    "argsort": lambda func, input, dim=-1, descending=False, stable=False: (
        torch.sort(input, dim=dim, descending=descending, stable=True).indices
        if stable
        else func(input, dim, descending)
    ),
    "vdot": lambda func, input, other: torch.dot(input, other),
}
"""By their names in `torch` and of methods."""

_OF_FLOATS = (
    "acos acosh asin asinh atan atanh cos cosh erf erfc exp expm1 log log10 log1p log2 rsqrt sigmoid sin sinh sqrt"
)
EXACT_VALUES: Dict[str, Function] = {
    "__getitem__": _taken,
    "__setitem__": _write_under_mask,
    "__floordiv__": _floor_divide,
    "__rfloordiv__": lambda func, input, other: _floor_divide(torch.floor_divide, other, input),
    **dict.fromkeys((*_OF_FLOATS.split(), "tan", "tanh"), _of_floats),
    **dict.fromkeys(("sum", "mean", "prod", "cumprod", "norm"), _in_type),
    "count_nonzero": lambda func, input, dim=None: func(input.reshape(-1), 0) if dim is None else func(input, dim),
}
"""As `EXACT_TENSORS`, for functions that may be written in place as they are."""
