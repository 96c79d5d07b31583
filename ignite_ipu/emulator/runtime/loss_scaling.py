"""Automatic loss scaling: the factor on the loss gradient follows the size of the float16 gradients it leads to.

The rule is PopART's. The elements of all float16 gradients of an update are counted, over all micro-batches and
replicas. These are the results of all operators of the backward pass that are no views. Those beyond `binEdgeLocation`
(an eighth) of float16's range, infinities and NaN are large ones. After the update, if the proportion of large elements
exceeds `thresholdUpperCountProportion` (1e-7) the factor is halved, else doubled; `updatePeriod` (1) is the number of
updates between two such checks. An update is never skipped: an infinity reaches the weights, as on the device. The
factor stays between 2^-24 and 2^15, float16's smallest value and its largest power of two.

The factor is kept with a PopTorch optimizer's state, so that it survives detaching and checkpoints; with a plain torch
optimizer, whose state is lost, it starts anew.

Source: PopART's session options, `automaticLossScalingSettings`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from ignite_ipu.emulator.errors import backend_error
from ignite_ipu.emulator.logs import logger
from ignite_ipu.torch_names.dispatch import DispatchMode, schema_of

if TYPE_CHECKING:
    from ignite_ipu.emulator.options import Options

SMALLEST, LARGEST = 2.0**-24, 2.0**15
_PREFIX = "automaticLossScalingSettings."
_HALF_RANGE = torch.finfo(torch.float16).max


class GradientsTracked(DispatchMode):  # type: ignore[no-untyped-call]
    """Context of a backward pass in which a loss scaling counts float16 results of operators."""

    def __init__(self, scaling: AutomaticLossScaling) -> None:
        super().__init__()
        self._scaling = scaling

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Optional[Dict[str, Any]] = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        if all(each.alias_info is None for each in schema_of(func).returns):
            outputs = output if isinstance(output, (tuple, list)) else [output]
            self._scaling.look([each for each in outputs if isinstance(each, torch.Tensor)])
        return output


class AutomaticLossScaling:
    """Counts gradient elements and computes the next loss scaling."""

    def __init__(self, bin_edge: float = 0.125, threshold: float = 1e-7, period: int = 1) -> None:
        for name, value in (("binEdgeLocation", bin_edge), ("thresholdUpperCountProportion", threshold)):
            if not 0 <= value <= 1:
                raise backend_error(f"{_PREFIX}{name} must be between 0 and 1, and it is {value}.")
        if period < 1:
            raise backend_error(f"{_PREFIX}updatePeriod must be at least 1, and it is {period}.")
        self._edge = bin_edge * _HALF_RANGE
        self._threshold = threshold
        self._period = period
        self._updates = 0
        self.forget()

    def look(self, gradients: Sequence[torch.Tensor]) -> None:
        """Count the elements of gradients of one micro-batch, scaled as the device has them."""
        for gradient in gradients:
            if gradient.dtype is torch.float16:
                # Written so that NaN counts as large.
                small = int((gradient.abs() <= self._edge).sum())
                self._counts += torch.tensor([gradient.numel() - small, gradient.numel()], dtype=torch.float64)

    def forget(self) -> None:
        self._counts = torch.zeros(2, dtype=torch.float64)

    def after_update(self, scaling: float, reduce: Optional[Callable[[List[torch.Tensor]], None]] = None) -> float:
        """Return the loss scaling of the next update; `reduce` adds up tensors over the other processes in place."""
        self._updates += 1
        if self._updates % self._period:
            return scaling
        counts = self._counts
        self.forget()
        if reduce is not None:
            reduce([counts])
        large, total = counts.tolist()
        if total == 0:
            if self._updates == self._period:
                logger.warning("Automatic loss scaling: no gradient is of type float16, the scaling stays as it is.")
            return scaling
        if large / total > self._threshold:
            return max(scaling / 2, SMALLEST)
        return max(scaling, min(scaling * 2, LARGEST))


def from_options(options: Options) -> Optional[AutomaticLossScaling]:
    """Return the automatic loss scaling that the options ask for; None when they do not."""
    value = options._Popart._value
    if not enabled(options):
        return None
    name = f"{_PREFIX}gradientTensorTrackingMethod"
    if value(name) is not None:
        logger.warning("%s: the emulator tracks the gradients of all float16 weights instead.", name)
    return AutomaticLossScaling(
        float(value(_PREFIX + "binEdgeLocation", 0.125)),
        float(value(_PREFIX + "thresholdUpperCountProportion", 1e-7)),
        int(value(_PREFIX + "updatePeriod", 1)),
    )


def enabled(options: Options) -> bool:
    """Return whether `Options.Training.setAutomaticLossScaling` was called with a true value."""
    return bool(options._Popart._value(_PREFIX + "enabled", False))
