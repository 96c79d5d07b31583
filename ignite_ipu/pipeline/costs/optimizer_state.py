"""State that each optimizer keeps beside the weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Union

from torch.optim import Optimizer

from ignite_ipu.errors import PlanError


@dataclass(frozen=True)
class OptimizerState:
    """Tensors of the parameters' size that an optimizer keeps from one update to the next.

    Args:
        name: What tables call it.
        slots: Such tensors per trainable parameter, float32 each.
        accumulator: Whether gradients need a tensor of their own to accumulate in; PopTorch's SGD with
            `use_combined_accum=True` accumulates in its momentum.
    """

    name: str
    slots: int
    accumulator: bool = True

    def bytes(self, elements: int) -> int:
        """Return the bytes of state for `elements` trainable elements, 4 to each slot."""
        return 4 * self.slots * elements


_BY_NAME: Dict[str, int] = {"sgd": 0, "sgd-momentum": 1, "adam": 2, "adamw": 2, "lamb": 2, "rmsprop": 1}


def optimizer_state(optimizer: Union[Optimizer, OptimizerState, str]) -> OptimizerState:
    """Return what an optimizer keeps, for an instance from torch or PopTorch or for a name.

    Raises:
        PlanError: An optimizer that PopTorch does not have.
    """
    if isinstance(optimizer, OptimizerState):
        return optimizer
    if isinstance(optimizer, str):
        if optimizer.lower() not in _BY_NAME:
            raise PlanError(f"No optimizer is named {optimizer!r}; PopTorch's are: {', '.join(_BY_NAME)}.")
        return OptimizerState(optimizer.lower(), _BY_NAME[optimizer.lower()])
    kinds = [kind.__name__.lower() for kind in type(optimizer).__mro__ if kind.__name__.lower() in _BY_NAME]
    name = type(optimizer).__name__
    if not kinds:
        raise PlanError(f"{name} has no counterpart in PopTorch, which has: SGD, Adam, AdamW, LAMB and RMSprop.")
    groups = [*optimizer.param_groups, optimizer.defaults]
    if any(group.get("amsgrad") for group in groups):
        raise PlanError(f"{name} with amsgrad=True has no counterpart in PopTorch; leave amsgrad off.")
    momentum = any(_value(group.get("momentum", 0.0)) != 0 for group in groups)
    combined = bool(getattr(optimizer, "use_combined_accum", False))
    if kinds[0] == "sgd":
        return OptimizerState(name, int(momentum or combined), accumulator=not combined)
    if kinds[0] == "rmsprop":
        centered = any(bool(_value(group.get("centered", False))) for group in groups)
        return OptimizerState(name, 1 + int(momentum) + int(centered))
    return OptimizerState(name, _BY_NAME[kinds[0]])


def _value(attribute: object) -> object:
    """Return the value of an attribute that PopTorch may store as a pair of value and constness."""
    return attribute[0] if isinstance(attribute, tuple) else attribute
