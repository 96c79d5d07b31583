"""The factories in a native run: Ignite's own engines, so that a migrated file runs where it came from."""

from __future__ import annotations

from typing import Any, Dict, Optional, Union

import torch
from ignite.engine import create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Metric
from torch import nn

__all__ = ["native_evaluator", "native_trainer"]


def native_trainer(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_fn: Any,
    device: Optional[Union[str, torch.device]],
    *,
    max_grad_norm: Optional[float] = None,
    **arguments: Any,
) -> Any:
    """Return what `create_ipu_trainer` gives in a native run.

    Args:
        loss_fn: The loss.
        device: None stands for the device the model is on.
        max_grad_norm: Only None: Ignite's trainer does not clip.
        arguments: The further arguments of `ignite.engine.create_supervised_trainer`.

    Raises:
        ValueError: `max_grad_norm` is given.
    """
    if max_grad_norm is not None:
        raise ValueError(
            f"max_grad_norm={max_grad_norm!r}: Ignite's own trainer does not clip gradients, and this run is native "
            "(IGNITE_IPU_BACKEND=native). Run it on the emulator or an IPU."
        )
    return create_supervised_trainer(model, optimizer, loss_fn, device=_device(model, device), **arguments)


def native_evaluator(
    model: nn.Module,
    metrics: Optional[Dict[str, Metric]],
    device: Optional[Union[str, torch.device]],
    **arguments: Any,
) -> Any:
    """Return what `create_ipu_evaluator` gives in a native run; arguments as for `native_trainer`."""
    return create_supervised_evaluator(model, metrics=metrics, device=_device(model, device), **arguments)


def _device(model: nn.Module, device: Optional[Union[str, torch.device]]) -> Optional[Union[str, torch.device]]:
    """Return the device that batches go to: the model's own, since migrated code has moved the model already."""
    if device is not None and torch.device(device).type != "ipu":
        return device
    parameter = next(model.parameters(), None)
    return None if parameter is None else parameter.device
