"""Losses that PopTorch compiles to something else than PyTorch computes, or not at all.

They are refused twice: when a loss module is given, before anything has run, and when a loss function is called while
the model is traced, so that those inside functions and models are found too.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional, Tuple

import torch.nn.functional as F
from torch import nn

from ignite_ipu.errors import LossError
from ignite_ipu.program.function_mode import FunctionGuard

__all__ = ["LossGuard", "check_loss_module"]

_WEIGHT = 2  # position of `weight` among the arguments of cross_entropy and nll_loss
_SMOOTHING = 7  # position of `label_smoothing` among the arguments of cross_entropy
_CTC_REDUCTION = 5  # position of `reduction` among the arguments of ctc_loss

_CLASS_WEIGHTS = (
    "{name} with class weights does not compile for an IPU. Weigh the samples yourself: "
    "weights = w[y]; loss = (F.cross_entropy(y_pred, y, reduction='none') * weights).sum() / weights.sum(), with w a "
    "buffer of a loss module. Where y may be ignore_index, so that it counts for nothing, weights = torch.where(y == "
    "ignore_index, torch.zeros_like(w[:1]), w[y.clamp(min=0)])."
)
_LABEL_SMOOTHING = (
    "{name} with label_smoothing={value} does not compile for an IPU, as PopTorch's sources read: PyTorch "
    "selects by a mask then. Add it yourself: loss = (1 - e) * F.cross_entropy(y_pred, y) - "
    "e * F.log_softmax(y_pred, 1).mean(), the mean over rows whose target is not ignore_index."
)
_HUBER = (
    "{name} does not compile for an IPU. Use delta * F.smooth_l1_loss(y_pred, y, beta=delta), which computes the same."
)
_CTC = "{name} with reduction='none' does not compile for an IPU; use 'sum' or 'mean'."


def check_loss_module(loss_fn: Any) -> None:
    """Refuse a loss module that holds a loss no IPU computes.

    Raises:
        LossError: The message names the module and what to use instead.
    """
    if not isinstance(loss_fn, nn.Module):
        return
    for path, module in loss_fn.named_modules():
        problem = _module_problem(module)
        if problem is not None:
            where = f" (at {path} of the loss)" if path else ""
            raise LossError(problem + where)


class LossGuard(FunctionGuard):
    """Context in which calling a loss that no IPU computes raises `LossError`."""

    def check(self, func: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        """Refuse a loss that no IPU computes."""
        rule = _CALLS.get(func)
        problem = None if rule is None else rule(args, kwargs)
        if problem is not None:
            raise LossError(problem)


def _module_problem(module: nn.Module) -> Optional[str]:
    name = f"nn.{type(module).__name__}"
    if isinstance(module, (nn.CrossEntropyLoss, nn.NLLLoss)) and module.weight is not None:
        return _CLASS_WEIGHTS.format(name=name)
    if isinstance(module, nn.CrossEntropyLoss) and module.label_smoothing:
        return _LABEL_SMOOTHING.format(name=name, value=module.label_smoothing)
    if isinstance(module, nn.HuberLoss):
        return _HUBER.format(name=name)
    if isinstance(module, nn.CTCLoss) and module.reduction == "none":
        return _CTC.format(name=name)
    return None


def _cross_entropy(args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Optional[str]:
    if _argument(args, kwargs, _WEIGHT, "weight") is not None:
        return _CLASS_WEIGHTS.format(name="F.cross_entropy")
    smoothing = _argument(args, kwargs, _SMOOTHING, "label_smoothing")
    return _LABEL_SMOOTHING.format(name="F.cross_entropy", value=smoothing) if smoothing else None


def _nll_loss(args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Optional[str]:
    weighted = _argument(args, kwargs, _WEIGHT, "weight") is not None
    return _CLASS_WEIGHTS.format(name="F.nll_loss") if weighted else None


def _huber_loss(args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Optional[str]:
    return _HUBER.format(name="F.huber_loss")


def _ctc_loss(args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Optional[str]:
    unreduced = _argument(args, kwargs, _CTC_REDUCTION, "reduction") == "none"
    return _CTC.format(name="F.ctc_loss") if unreduced else None


def _argument(args: Tuple[Any, ...], kwargs: Dict[str, Any], position: int, name: str) -> Any:
    return args[position] if len(args) > position else kwargs.get(name)


_CALLS: Dict[Any, Callable[[Tuple[Any, ...], Dict[str, Any]], Optional[str]]] = {
    F.cross_entropy: _cross_entropy,
    F.nll_loss: _nll_loss,
    F.huber_loss: _huber_loss,
    F.ctc_loss: _ctc_loss,
}
