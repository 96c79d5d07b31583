"""Adam and AdamW for the IPU."""

from __future__ import annotations

from typing import Any, Iterable, Optional, Tuple

import torch

from ignite_ipu.emulator.optim.optimizer import Optimizer, accumulation_type, given_arguments


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

    _poptorch_attributes = (
        *Optimizer._poptorch_attributes,
        "loss_scaling",
        "accum_type",
        "first_order_momentum_accum_type",
        "second_order_momentum_accum_type",
        "max_grad_norm",
    )

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
        Optimizer.__init__(self)
        given = given_arguments(
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "amsgrad": amsgrad,
                "foreach": foreach,
                "maximize": maximize,
                "capturable": capturable,
                "differentiable": differentiable,
                "fused": fused,
            }
        )
        torch.optim.Adam.__init__(self, params, **given)
        self.loss_scaling = 1.0 if loss_scaling is None else loss_scaling
        self.accum_type = accumulation_type(accum_type)
        self.first_order_momentum_accum_type = accumulation_type(first_order_momentum_accum_type)
        self.second_order_momentum_accum_type = accumulation_type(second_order_momentum_accum_type)
        self.max_grad_norm = float("inf") if max_grad_norm is None else max_grad_norm
        given.update(given_arguments({"loss_scaling": loss_scaling}))
        self._mark_variables(given, [*self.defaults, "loss_scaling"])


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

    _poptorch_attributes = (
        *Optimizer._poptorch_attributes,
        "loss_scaling",
        "bias_correction",
        "accum_type",
        "first_order_momentum_accum_type",
        "second_order_momentum_accum_type",
        "max_grad_norm",
    )

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
        Optimizer.__init__(self)
        given = given_arguments(
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "amsgrad": amsgrad,
                "maximize": maximize,
                "foreach": foreach,
                "capturable": capturable,
                "differentiable": differentiable,
                "fused": fused,
            }
        )
        torch.optim.AdamW.__init__(self, params, **given)
        self.loss_scaling = 1.0 if loss_scaling is None else loss_scaling
        self.bias_correction = True if bias_correction is None else bias_correction
        self.accum_type = accumulation_type(accum_type)
        self.first_order_momentum_accum_type = accumulation_type(first_order_momentum_accum_type)
        self.second_order_momentum_accum_type = accumulation_type(second_order_momentum_accum_type)
        self.max_grad_norm = float("inf") if max_grad_norm is None else max_grad_norm
        given.update(given_arguments({"loss_scaling": loss_scaling}))
        self._mark_variables(given, [*self.defaults, "loss_scaling"])
