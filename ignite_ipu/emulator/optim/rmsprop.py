"""RMSprop for the IPU."""

from __future__ import annotations

from typing import Any, Iterable, Optional

import torch

from ignite_ipu.emulator.optim.optimizer import MOMENTS, Optimizer


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

    _poptorch_attributes = (*Optimizer._poptorch_attributes, *MOMENTS, "use_tf_variant")

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
        self._begin(torch.optim.RMSprop.__init__, locals())
