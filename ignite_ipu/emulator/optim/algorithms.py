"""PopTorch's optimizers, each that of torch with what `Optimizer` adds to it; torch has no LAMB.

An executor reads such an object and runs its update on the device.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, Optional, Tuple

import torch

from ignite_ipu.emulator.logs import logger
from ignite_ipu.emulator.optim.optimizer import Optimizer

_LAMB = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2, "max_weight_norm": 65500.0}


class SGD(Optimizer, torch.optim.SGD):
    """`torch.optim.SGD` with PopTorch's extras, which `Optimizer` describes.

    See `updates` for how its dampening differs.

    Args:
        velocity_scaling: Factor on the stored velocity; 1.0 by default. For the combined variant only.
        use_combined_accum: Keep gradients and velocity in one tensor, which saves memory and makes changes of all
            hyper-parameters except `lr` act one update later. Off by default.
        accum_type: Type in which gradients accumulate, float16 or float32; the combined variant ignores it.
        velocity_accum_type: Type in which the velocity is stored; the combined variant ignores it.
        max_grad_norm: Largest global 2-norm of what the weight update consumes; infinity by default.

    Raises:
        AssertionError: An accumulation type is neither float16 nor float32.
    """

    use_combined_accum: bool

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


class Adam(Optimizer, torch.optim.Adam):
    """`torch.optim.Adam` with PopTorch's extras, which `Optimizer` describes.

    Raises:
        AssertionError: An accumulation type is neither float16 nor float32.
    """

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
    """`torch.optim.AdamW` with PopTorch's extras, which `Optimizer` describes.

    Args:
        bias_correction: Part of the optimizer's type; PopTorch compiles the bias-corrected update either way.

    Raises:
        AssertionError: An accumulation type is neither float16 nor float32.
    """

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


class RMSprop(Optimizer, torch.optim.RMSprop):
    """`torch.optim.RMSprop` with PopTorch's extras, which `Optimizer` describes.

    Args:
        first_order_momentum_accum_type: Type in which `Accl1`, the mean of the squared gradients, is stored.
        second_order_momentum_accum_type: Type in which `Accl2`, the mean gradient of `centered=True`, is stored.
        use_tf_variant: Follow TensorFlow: the mean square starts at 1, eps goes under the root, and the learning
            rate into the momentum. Off by default.

    Raises:
        AssertionError: An accumulation type is neither float16 nor float32.
    """

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


class LAMB(Optimizer, torch.optim.Optimizer):
    """Adam whose step is scaled, for each tensor, by the norm of the weights over the norm of the step.

    Other arguments than these are PopTorch's extras, which `Optimizer` describes. Unlike torch's classes this one does
    not check the range of its values.

    Args:
        lr: Learning rate; 1e-3 by default.
        betas: Decay rates of the two moments; (0.9, 0.999) by default.
        eps: Added to the root of the second moment; 1e-8 by default.
        weight_decay: Decoupled weight decay; 1e-2 by default.
        bias_correction: Correct the moments' start at zero, on by default. Part of the optimizer's type.
        max_weight_norm: Weights' norms above this count as this; 65500.0 by default.

    Raises:
        AssertionError: An accumulation type is neither float16 nor float32.

    Source: You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", algorithm 2.
    """

    bias_correction: bool

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
        defaults = {**_LAMB, **given, "bias_correction": self.bias_correction}
        torch.optim.Optimizer.__init__(self, params, defaults)
        self.max_weight_norm = defaults["max_weight_norm"]

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], float]] = None) -> Optional[float]:  # type: ignore[override]
        """Update the host's parameters from their `.grad`; the device never calls this."""
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
        corrections = [1 - beta ** state["step"] if self.bias_correction else 1.0 for beta in (beta1, beta2)]
        root = (state["exp_avg_sq"] / corrections[1]).sqrt_().add_(group["eps"])
        direction = (state["exp_avg"] / corrections[0]).div_(root).add_(param, alpha=group["weight_decay"])
        # PopTorch limits the norm by the value given to the constructor here, whatever the group says.
        weight_norm = min(float(torch.linalg.vector_norm(param)), self.max_weight_norm)
        direction_norm = float(torch.linalg.vector_norm(direction))
        trust = weight_norm / direction_norm if weight_norm != 0 and direction_norm != 0 else 1.0
        param.add_(direction, alpha=-group["lr"] * trust)
