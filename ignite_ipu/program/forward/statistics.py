"""Batch statistics that normalisations in training mode write in an inference program.

PopTorch updates running means and variances in training programs alone; forward's own writes in place are kept in both.
So in an inference program the update is written out, by PyTorch's formula.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
import torch.nn.functional as F

from ignite_ipu.program.function_mode import FunctionContext

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
            given = {**dict(zip(_NAMES[func], args)), **kwargs}
            name, default = _USES_BATCH[func]
            mean: Optional[torch.Tensor] = given.get("running_mean")
            if given.get(name, default) and mean is not None:
                momentum = given.get("momentum", _MOMENTUM)
                _update(given["input"], mean, given["running_var"], momentum, func is F.instance_norm)
        return output


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
