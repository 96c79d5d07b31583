"""PopTorch's optimizers, each that of torch with a record of the state on the device; torch has no LAMB.

An executor reads such an object and runs its update on the device.
"""

from __future__ import annotations

import copy
import math
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Tuple, cast

import torch

from ignite_ipu.emulator.logs import logger

IpuTensors = Dict[str, torch.Tensor]
IpuState = Tuple[IpuTensors, IpuTensors]
"""Moments and step counters by name (`ipu_state`), then the variable hyper-parameters by name (`ipu_param`)."""

ACCUMULATION_TYPES = (torch.float16, torch.float32)
MOMENTS = ("first_order_momentum_accum_type", "second_order_momentum_accum_type")
_LAMB = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2, "max_weight_norm": 65500.0}
_RECORDED = ("ipu_state", "ipu_param")
# PopTorch's own arguments of constructors, and their defaults for None.
EXTRAS: Mapping[str, Any] = {
    "loss_scaling": 1.0,
    "velocity_scaling": 1.0,
    "use_combined_accum": False,
    "bias_correction": True,
    "accum_type": torch.float32,
    "velocity_accum_type": torch.float32,
    "first_order_momentum_accum_type": torch.float32,
    "second_order_momentum_accum_type": torch.float32,
    "max_grad_norm": math.inf,
    "use_tf_variant": False,
}


class VariableAttributes:
    """The hyper-parameters of one optimizer that are compiled as variables; all others are constants.

    `betas` stands for both of Adam's decay rates. Marks count when the optimizer is given to an executor, and cannot
    change once that executor is compiled.
    """

    def __init__(self, variable_attributes: List[str], allowed_attributes: List[str]) -> None:
        self._variable = list(variable_attributes)
        self._allowed = list(allowed_attributes)

    def __copy__(self) -> VariableAttributes:
        return VariableAttributes(self._variable, self._allowed)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VariableAttributes) and repr(self) == repr(other)

    __hash__ = None  # type: ignore[assignment]  # marks change

    def __repr__(self) -> str:
        return f"VariableAttributes(variable={sorted(set(self._variable))}, allowed={sorted(set(self._allowed))})"

    def isConstant(self, attr: str) -> bool:
        """Return whether `attr` is compiled in; true of every name that is not marked as variable, known or not."""
        return attr not in self._variable

    def markAsConstant(self, attr: str) -> None:
        """Compile the value of `attr` in.

        Raises:
            AssertionError: The optimizer has no such hyper-parameter.
        """
        self._check(attr)
        self._variable = [name for name in self._variable if name != attr]

    def markAsVariable(self, attr: str) -> None:
        """Let `setOptimizer` change `attr` without compiling again.

        Raises:
            AssertionError: The optimizer has no such hyper-parameter.
        """
        self._check(attr)
        if attr not in self._variable:
            self._variable.append(attr)

    def _check(self, attr: str) -> None:
        if attr not in self._allowed:
            raise AssertionError(
                f"Unknown attribute {attr!r}: this optimizer can mark only {', '.join(sorted(self._allowed))} "
                "as constant or variable."
            )


class Optimizer:
    """Base of the classes in `poptorch.optim`: adds a record of the device's state to a `torch.optim` optimizer.

    Constructors take torch's arguments and PopTorch's extras. Those passed explicitly are variable, all others
    constant, `lr` included. The extras of several are:

    - `loss_scaling`, a factor on the loss before the backward pass, divided out in the update; 1.0 by default.
    - `accum_type`, the type in which gradients accumulate, and those in which the moments are stored,
      `first_order_momentum_accum_type` and `second_order_momentum_accum_type`: float16 or float32 (the default).
    - `max_grad_norm`, the largest global 2-norm of the gradients; infinity by default.

    An executor that trains with it puts a `state_dict` of its own on the object, which first reads newer state from the
    device. So a reference to the optimizer keeps that executor, model and IPUs alive until another optimizer replaces
    it.

    Attributes:
        ipu_state_is_dirty: A state was loaded here that the device has yet to receive.
        host_state_is_dirty: The device has trained since the state kept here was read.
    """

    variable_attrs: VariableAttributes

    def __init__(self) -> None:
        self.ipu_state_is_dirty = False
        self.host_state_is_dirty = False
        self._record: Dict[str, Optional[IpuTensors]] = {}

    def state_dict(self) -> Dict[str, Any]:
        """Return torch's dictionary plus `ipu_state` and `ipu_param`, as they are recorded here.

        Both are None until the first attach; then they map names such as `Accl1___fc.weight` to tensors.
        """
        return {**dict.fromkeys(_RECORDED), **self.get_state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a dictionary made by `state_dict`; the device receives it at its next run or attach.

        Hyper-parameters come into force with the executor's `setOptimizer`.

        Raises:
            KeyError: There are no `param_groups`.
            ValueError: The groups do not match this optimizer's.
            RuntimeError: There is no device state, as in the dictionary of a `torch.optim` optimizer.
        """
        plain = {name: value for name, value in state.items() if name not in _RECORDED}
        torch.optim.Optimizer.load_state_dict(self._torch(), plain)
        self.set_state_dict(state)

    def get_state_dict(self) -> Dict[str, Any]:
        """Return the record as it is, without asking the device, and torch's own entries.

        Its `ipu_state` and `ipu_param` are absent before there are any.
        """
        return {**self._record, **torch.optim.Optimizer.state_dict(self._torch())}

    def set_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make `ipu_state` and `ipu_param` the record; the device receives them at its next run or attach.

        Raises:
            RuntimeError: `state` is empty or lacks one of the two.
        """
        if not state:
            raise RuntimeError("Cannot set the optimizer's state dictionary because it is empty.")
        missing = [name for name in _RECORDED if name not in state]
        if missing:
            raise RuntimeError(
                f"Only IPU optimizer states can be loaded onto the IPU: {' and '.join(missing)} missing among the keys "
                f"{sorted(state)}. Load a dictionary that state_dict() of a poptorch.optim optimizer returned."
            )
        self._record = {name: _copied(state[name]) for name in _RECORDED}
        self.host_state_is_dirty = False
        self.ipu_state_is_dirty = self.has_state()

    def has_state(self) -> bool:
        """Return whether there is device state in this object."""
        return self._recorded() is not None

    def __getstate__(self) -> Dict[str, Any]:
        # Only the description of the optimizer: executors, hooks and the step() that schedulers wrap are left out.
        state: Dict[str, Any] = torch.optim.Optimizer.__getstate__(self._torch())
        own = ("variable_attrs", "max_weight_norm", *EXTRAS)
        state.update({name: copy.copy(getattr(self, name)) for name in own if name in vars(self)})
        state.update(ipu_state_is_dirty=self.ipu_state_is_dirty, host_state_is_dirty=False, _record=self._record)
        return state

    def _torch(self) -> torch.optim.Optimizer:
        return cast(torch.optim.Optimizer, self)

    def _begin(self, torchs_init: Callable[..., None], arguments: Mapping[str, Any]) -> None:
        """Common part of all constructors, with all arguments: None leaves one to its default.

        `torchs_init` takes those that are not PopTorch's own.
        """
        Optimizer.__init__(self)
        given = {name: value for name, value in arguments.items() if value is not None and name != "self"}
        for name, default in EXTRAS.items():
            # The velocity's scaling is a hyper-parameter of the groups.
            if name in arguments and name != "velocity_scaling":
                value = given.get(name, default)
                if isinstance(default, torch.dtype) and value not in ACCUMULATION_TYPES:
                    raise AssertionError(
                        f"Accumulation types must be either torch.float32 or torch.float16, not {value}."
                    )
                setattr(self, name, bool(value) if default is False else value)
        torchs_init(self, **{name: value for name, value in given.items() if name not in EXTRAS})
        self._mark_variables(given)

    def _mark_variables(self, given: Iterable[str]) -> None:
        """Make variable the hyper-parameters among `given`, the arguments passed explicitly."""
        names = [name for name in (*self._torch().defaults, "loss_scaling") if name != "bias_correction"]
        self.variable_attrs = VariableAttributes([name for name in given if name in names], names)

    def _recorded(self) -> Optional[IpuState]:
        state, values = self._record.get("ipu_state"), self._record.get("ipu_param")
        return None if state is None or values is None else (state, values)


def _copied(tensors: Optional[Mapping[str, torch.Tensor]]) -> Optional[IpuTensors]:
    return None if tensors is None else {name: tensor.detach().clone() for name, tensor in tensors.items()}


class SGD(Optimizer, torch.optim.SGD):
    """`torch.optim.SGD` with PopTorch's extras, which `Optimizer` describes.

    See `updates` for how its dampening differs.

    Args:
        velocity_scaling: Factor on the stored velocity; 1.0 by default. For the combined variant only.
        use_combined_accum: Keep gradients and velocity in one tensor, which saves memory and makes changes of all
            hyper-parameters except `lr` act one update later. Off by default.
        accum_type: Type in which gradients accumulate, float16 or float32; the combined variant ignores it.
        velocity_accum_type: Type in which the velocity is stored; the combined variant ignores it.
        max_grad_norm: Largest global 2-norm of the input of the weight update; infinity by default.

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
