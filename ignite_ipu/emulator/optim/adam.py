"""Adam and AdamW for the IPU."""

from __future__ import annotations

from typing import Any, Iterable, Optional, Tuple

import torch

from ignite_ipu.emulator.optim.optimizer import MOMENTS, Optimizer


class Adam(Optimizer, torch.optim.Adam):
    """`torch.optim.Adam` with PopTorch's extras.

    Args:
        loss_scaling: Factor on the loss before the backward pass, divided out in the update; 1.0 by default.
        accum_type: Type in which gradients accumulate, float16 or float32 (the default).
        first_order_momentum_accum_type: Type in which the first moment is stored.
        second_order_momentum_accum_type: Type in which the second moment is stored.
        max_grad_norm: Largest global 2-norm of the gradients; infinity by default.

    Other arguments are torch's. Those passed explicitly are variable, all others constant, `lr` included.

    Raises:
        AssertionError: An accumulation type is neither float16 nor float32.
    """

    _poptorch_attributes = (*Optimizer._poptorch_attributes, *MOMENTS, "max_grad_norm")

    def __init__(
        self,
        params: Iterable[Any],
        lr: Optional[float] = None,
        betas: Optional[Tuple[float, float]] = None,
        eps: Optional[float] = None,
        weight_decay: Optional[float] = None,
        amsgrad: Optional[bool] = None,
        foreach: Optional[bool] = None,
        maximize: Optional[bool] = None,
        capturable: Optional[bool] = None,
        differentiable: Optional[bool] = None,
        fused: Optional[bool] = None,
        loss_scaling: Optional[float] = None,
        accum_type: Optional[torch.dtype] = None,
        first_order_momentum_accum_type: Optional[torch.dtype] = None,
        second_order_momentum_accum_type: Optional[torch.dtype] = None,
        max_grad_norm: Optional[float] = None,
    ) -> None:
        self._begin(torch.optim.Adam.__init__, locals())


class AdamW(Optimizer, torch.optim.AdamW):
    """`torch.optim.AdamW` with PopTorch's extras.

    Args:
        loss_scaling: Factor on the loss before the backward pass, divided out in the update; 1.0 by default.
        bias_correction: Part of the optimizer's type; PopTorch compiles the bias-corrected update either way.
        accum_type: Type in which gradients accumulate, float16 or float32 (the default).
        first_order_momentum_accum_type: Type in which the first moment is stored.
        second_order_momentum_accum_type: Type in which the second moment is stored.
        max_grad_norm: Largest global 2-norm of the gradients; infinity by default.

    Other arguments are torch's. Those passed explicitly are variable, all others constant, `lr` included.

    Raises:
        AssertionError: An accumulation type is neither float16 nor float32.
    """

    _poptorch_attributes = (*Optimizer._poptorch_attributes, *MOMENTS, "bias_correction", "max_grad_norm")

    def __init__(
        self,
        params: Iterable[Any],
        lr: Optional[float] = None,
        betas: Optional[Tuple[float, float]] = None,
        eps: Optional[float] = None,
        weight_decay: Optional[float] = None,
        amsgrad: Optional[bool] = None,
        maximize: Optional[bool] = None,
        foreach: Optional[bool] = None,
        capturable: Optional[bool] = None,
        differentiable: Optional[bool] = None,
        fused: Optional[bool] = None,
        loss_scaling: Optional[float] = None,
        bias_correction: Optional[bool] = None,
        accum_type: Optional[torch.dtype] = None,
        first_order_momentum_accum_type: Optional[torch.dtype] = None,
        second_order_momentum_accum_type: Optional[torch.dtype] = None,
        max_grad_norm: Optional[float] = None,
    ) -> None:
        self._begin(torch.optim.AdamW.__init__, locals())
