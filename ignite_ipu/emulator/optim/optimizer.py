"""Base of all PopTorch optimizers: a record of the state on the device, and which values may change there."""

from __future__ import annotations

import copy
import math
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Tuple, cast

import torch

IpuTensors = Dict[str, torch.Tensor]
IpuState = Tuple[IpuTensors, IpuTensors]
"""Moments and step counters by name (`ipu_state`), then the variable hyper-parameters by name (`ipu_param`)."""

ACCUMULATION_TYPES = (torch.float16, torch.float32)
MOMENTS = ("first_order_momentum_accum_type", "second_order_momentum_accum_type")
_RECORDED = ("ipu_state", "ipu_param")
# PopTorch's own arguments of constructors, and what None stands for.
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
        """Return whether `attr` is compiled in; true of every name nobody marked as variable, known or not."""
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

    An executor that trains with it puts a `state_dict` of its own on the object, which asks the device for newer state
    first. So whoever keeps the optimizer keeps that executor, model and IPUs, until another optimizer takes its place.

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
        # Only what describes the optimizer: executors, hooks and the step() that schedulers wrap stay behind.
        state: Dict[str, Any] = torch.optim.Optimizer.__getstate__(self._torch())
        own = ("variable_attrs", "max_weight_norm", *EXTRAS)
        state.update({name: copy.copy(getattr(self, name)) for name in own if name in vars(self)})
        state.update(ipu_state_is_dirty=self.ipu_state_is_dirty, host_state_is_dirty=False, _record=self._record)
        return state

    def _torch(self) -> torch.optim.Optimizer:
        return cast(torch.optim.Optimizer, self)

    def _begin(self, torchs_init: Callable[..., None], arguments: Mapping[str, Any]) -> None:
        """Do what every constructor does, with all of its arguments: None leaves one to its default.

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
        """Return the recorded state, None where there is none."""
        state, values = self._record.get("ipu_state"), self._record.get("ipu_param")
        return None if state is None or values is None else (state, values)


def _copied(tensors: Optional[Mapping[str, torch.Tensor]]) -> Optional[IpuTensors]:
    return None if tensors is None else {name: tensor.detach().clone() for name, tensor in tensors.items()}
