"""RMSprop for the IPU."""

from __future__ import annotations

from typing import Any, Iterable, Optional

import torch

from ignite_ipu.emulator.optim.optimizer import Optimizer, accumulation_type, given_arguments


class RMSprop(Optimizer, torch.optim.RMSprop):
    """`torch.optim.RMSprop` with PopTorch's extras.

    Args:
        loss_scaling: Factor on the loss before the backward pass, divided out in the update; 1.0 by default.
        accum_type: Type in which gradients accumulate, float16 or float32 (the default).
        first_order_momentum_accum_type: Type in which `Accl1`, the mean of the squared gradients, is stored.
        second_order_momentum_accum_type: Type in which `Accl2`, the mean gradient of `centered=True`, is stored.
        use_tf_variant: Follow TensorFlow: the mean square starts at 1, eps goes under the root, and the learning
            rate into the momentum. Off by default.

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
        "use_tf_variant",
    )

    def __init__(
        self,
        params: Iterable[Any],
        lr: Optional[float] = None,
        alpha: Optional[float] = None,
        eps: Optional[float] = None,
        weight_decay: Optional[float] = None,
        momentum: Optional[float] = None,
        centered: Optional[bool] = None,
        foreach: Optional[bool] = None,
        maximize: Optional[bool] = None,
        differentiable: Optional[bool] = None,
        loss_scaling: Optional[float] = None,
        accum_type: Optional[torch.dtype] = None,
        first_order_momentum_accum_type: Optional[torch.dtype] = None,
        second_order_momentum_accum_type: Optional[torch.dtype] = None,
        use_tf_variant: Optional[bool] = None,
    ) -> None:
        Optimizer.__init__(self)
        given = given_arguments(
            {
                "lr": lr,
                "alpha": alpha,
                "eps": eps,
                "weight_decay": weight_decay,
                "momentum": momentum,
                "centered": centered,
                "foreach": foreach,
                "maximize": maximize,
                "differentiable": differentiable,
            }
        )
        torch.optim.RMSprop.__init__(self, params, **given)
        self.loss_scaling = 1.0 if loss_scaling is None else loss_scaling
        self.accum_type = accumulation_type(accum_type)
        self.first_order_momentum_accum_type = accumulation_type(first_order_momentum_accum_type)
        self.second_order_momentum_accum_type = accumulation_type(second_order_momentum_accum_type)
        self.use_tf_variant = bool(use_tf_variant)
        given.update(given_arguments({"loss_scaling": loss_scaling}))
        self._mark_variables(given, [*self.defaults, "loss_scaling"])
