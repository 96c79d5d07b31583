"""Running statistics of normalisations: written in inference programs, and updated after their use in one forward.

PopTorch updates running means and variances in training programs alone; forward's own writes in place are kept in both.
So in an inference program the update is written out, by PyTorch's formula.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
import torch.nn.functional as F

from ignite_ipu.errors import LossError
from ignite_ipu.program.function_mode import FunctionContext, FunctionGuard
from ignite_ipu.program.user_code import Line, current_line

_NORMALISATIONS = (F.batch_norm, F.instance_norm)
_NAMES = {
    F.batch_norm: ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps"),
    F.instance_norm: ("input", "running_mean", "running_var", "weight", "bias", "use_input_stats", "momentum", "eps"),
}
_USES_BATCH = {F.batch_norm: ("training", False), F.instance_norm: ("use_input_stats", True)}
_MOMENTUM = 0.1


class StatisticsWritten(FunctionContext):
    """Context in which normalisations by the batch also update their running statistics."""

    def concerns(
        self, func: Callable[..., Any], tensors: List[torch.Tensor], args: Tuple[Any, ...], kwargs: Dict[str, Any]
    ) -> bool:
        return func in _NORMALISATIONS

    def call(self, func: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        output = func(*args, **kwargs)
        if func in _NORMALISATIONS:
            given, uses_batch = _given(func, args, kwargs)
            mean: Optional[torch.Tensor] = given.get("running_mean")
            if uses_batch and mean is not None:
                momentum = given.get("momentum", _MOMENTUM)
                _update(given["input"], mean, given["running_var"], momentum, func is F.instance_norm)
        return output


class LaterStatisticsGuard(FunctionGuard):
    """Refuses a forward that updates the running statistics of a normalisation after it has normalised with them.

    PyTorch's kernels compute the gradient of the first one with the later statistics then, and no device does.
    """

    def __init__(self) -> None:
        super().__init__()
        self._used: List[Tuple[torch.Tensor, Line]] = []

    def concerns(
        self, func: Callable[..., Any], tensors: List[torch.Tensor], args: Tuple[Any, ...], kwargs: Dict[str, Any]
    ) -> bool:
        return func in _NORMALISATIONS

    def check(self, func: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        if func not in _NORMALISATIONS:
            return
        given, uses_batch = _given(func, args, kwargs)
        mean: Optional[torch.Tensor] = given.get("running_mean")
        if mean is None:
            return
        if not uses_batch:
            sources = [given["input"], given.get("weight")]
            if torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in sources):
                self._used.append((mean, current_line()))
            return
        for used, line in self._used:
            if used is mean:
                raise LossError(
                    f"The forward normalises with running statistics at {line}, and updates them at {current_line()}. "
                    "PyTorch would compute the gradient of the first normalisation with the later statistics, which no "
                    "device does. Update them first, or make the first one under torch.no_grad()."
                )


def _given(func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Tuple[Dict[str, Any], bool]:
    """Return the arguments of a normalisation by name, and whether it uses and updates the statistics of the batch."""
    given = {**dict(zip(_NAMES[func], args)), **kwargs}
    name, default = _USES_BATCH[func]
    return given, bool(given.get(name, default))


def _update(input: torch.Tensor, mean: torch.Tensor, var: torch.Tensor, momentum: float, of_instances: bool) -> None:
    """Move running statistics towards those of a batch `(N, C, ...)`; of instances, towards the mean of theirs."""
    kept: List[int] = [0, 1] if of_instances else [1]
    summed = [dimension for dimension in range(input.dim()) if dimension not in kept]
    count = 1
    for dimension in summed:
        count *= input.shape[dimension]
    batch_mean = input.mean(summed, keepdim=True)
    batch_var = ((input - batch_mean) ** 2).mean(summed, keepdim=True) * (count / max(count - 1, 1))
    for running, now in ((mean, batch_mean), (var, batch_var)):
        now = now.mean(0, keepdim=True) if of_instances else now
        running.copy_(running * (1 - momentum) + now.reshape(running.shape).to(running.dtype) * momentum)
