"""LAMB, layer-wise adaptive moments, for the IPU and for the host."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, Optional, Tuple

import torch

from ignite_ipu.emulator.optim.optimizer import MOMENTS, Optimizer

_DEFAULTS = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2, "max_weight_norm": 65500.0}


class LAMB(Optimizer, torch.optim.Optimizer):
    """Adam whose step is scaled, for each tensor, by the norm of the weights over the norm of the step.

    Args:
        lr: Learning rate; 1e-3 by default.
        betas: Decay rates of the two moments; (0.9, 0.999) by default.
        eps: Added to the root of the second moment; 1e-8 by default.
        weight_decay: Decoupled weight decay; 1e-2 by default.
        bias_correction: Correct the moments' start at zero, on by default. Part of the optimizer's type.
        loss_scaling: Factor on the loss before the backward pass, divided out in the update; 1.0 by default.
        max_weight_norm: Weights' norms above this count as this; 65500.0 by default.
        accum_type: Type in which gradients accumulate, float16 or float32 (the default).
        first_order_momentum_accum_type: Type in which the first moment is stored.
        second_order_momentum_accum_type: Type in which the second moment is stored.

    Arguments passed explicitly are variable, all others constant, `lr` included. Unlike torch's classes this one does
    not check the range of its values.

    Raises:
        AssertionError: An accumulation type is neither float16 nor float32.

    Source: You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", algorithm 2.
    """

    bias_correction: bool
    _poptorch_attributes = (*Optimizer._poptorch_attributes, *MOMENTS, "bias_correction", "max_weight_norm")

    def __init__(
        self,
        params: Iterable[Any],
        lr: Optional[float] = None,
        betas: Optional[Tuple[float, float]] = None,
        eps: Optional[float] = None,
        weight_decay: Optional[float] = None,
        bias_correction: Optional[bool] = None,
        loss_scaling: Optional[float] = None,
        max_weight_norm: Optional[float] = None,
        accum_type: Optional[torch.dtype] = None,
        first_order_momentum_accum_type: Optional[torch.dtype] = None,
        second_order_momentum_accum_type: Optional[torch.dtype] = None,
    ) -> None:
        self._begin(LAMB._initialise, locals())

    def _initialise(self, params: Iterable[Any], **given: Any) -> None:
        defaults = {**_DEFAULTS, **given, "bias_correction": self.bias_correction}
        torch.optim.Optimizer.__init__(self, params, defaults)
        self.max_weight_norm = defaults["max_weight_norm"]

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], float]] = None) -> Optional[float]:  # type: ignore[override]
        """Update the host's parameters from their `.grad`; the device never calls this.

        Returns:
            The loss that `closure` computed, or None.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self._step(param, group)
        return loss

    def _step(self, param: torch.Tensor, group: Dict[str, Any]) -> None:
        state = self.state[param]
        if not state:
            state.update(step=0, exp_avg=torch.zeros_like(param), exp_avg_sq=torch.zeros_like(param))
        beta1, beta2 = group["betas"]
        state["step"] += 1
        state["exp_avg"].mul_(beta1).add_(param.grad, alpha=1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(param.grad, param.grad, value=1 - beta2)
        correction1 = 1 - beta1 ** state["step"] if self.bias_correction else 1.0
        correction2 = 1 - beta2 ** state["step"] if self.bias_correction else 1.0
        root = (state["exp_avg_sq"] / correction2).sqrt_().add_(group["eps"])
        direction = (state["exp_avg"] / correction1).div_(root).add_(param, alpha=group["weight_decay"])
        # PopTorch limits the norm by the value given to the constructor here, whatever the group says.
        weight_norm = min(float(torch.linalg.vector_norm(param)), self.max_weight_norm)
        direction_norm = float(torch.linalg.vector_norm(direction))
        trust = weight_norm / direction_norm if weight_norm != 0 and direction_norm != 0 else 1.0
        param.add_(direction, alpha=-group["lr"] * trust)
