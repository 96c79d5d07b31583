"""Stochastic gradient descent for the IPU."""

from __future__ import annotations

from typing import Any, Iterable, Optional

import torch

from ignite_ipu.emulator.logs import logger
from ignite_ipu.emulator.optim.optimizer import Optimizer


class SGD(Optimizer, torch.optim.SGD):
    """`torch.optim.SGD` with PopTorch's extras; see `updates` for how its dampening differs.

    Args:
        loss_scaling: Factor on the loss before the backward pass, divided out in the update; 1.0 by default.
        velocity_scaling: Factor on the stored velocity; 1.0 by default. For the combined variant only.
        use_combined_accum: Keep gradients and velocity in one tensor, which saves memory and makes changes of all
            hyper-parameters except `lr` act one update later. Off by default.
        accum_type: Type in which gradients accumulate, float16 or float32; the combined variant ignores it.
        velocity_accum_type: Type in which the velocity is stored; the combined variant ignores it.
        max_grad_norm: Largest global 2-norm of what the weight update consumes; infinity by default.

    Other arguments are torch's. Those passed explicitly are variable, all others constant.

    Raises:
        AssertionError: An accumulation type is neither float16 nor float32.
    """

    use_combined_accum: bool
    _poptorch_attributes = (
        *Optimizer._poptorch_attributes,
        "use_combined_accum",
        "velocity_accum_type",
        "max_grad_norm",
    )

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        momentum: Optional[float] = None,
        dampening: Optional[float] = None,
        weight_decay: Optional[float] = None,
        nesterov: Optional[bool] = None,
        maximize: Optional[bool] = None,
        foreach: Optional[bool] = None,
        differentiable: Optional[bool] = None,
        loss_scaling: Optional[float] = None,
        velocity_scaling: Optional[float] = None,
        use_combined_accum: Optional[bool] = None,
        accum_type: Optional[torch.dtype] = None,
        velocity_accum_type: Optional[torch.dtype] = None,
        max_grad_norm: Optional[float] = None,
    ) -> None:
        arguments = dict(locals())
        self._begin(torch.optim.SGD.__init__, arguments)
        if self.use_combined_accum:
            self.defaults["velocity_scaling"] = 1.0 if velocity_scaling is None else velocity_scaling
            for group in self.param_groups:
                group.setdefault("velocity_scaling", self.defaults["velocity_scaling"])
            self._mark_variables(name for name, value in arguments.items() if value is not None)
        elif velocity_scaling is not None:
            logger.warning(
                "velocity_scaling value ignored: %s has no effect unless use_combined_accum=True. The separate variant "
                "scales its velocity by loss_scaling.",
                velocity_scaling,
            )
