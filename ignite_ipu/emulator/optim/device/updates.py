"""The device's update rules, over whole lists of weights at once.

Notation as in the literature: weight w, gradient g (reduced, without loss scaling), weight decay l, momentum m and
dampening d. All state starts at 0 unless said otherwise, and t counts updates from 1.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import Dict, List, Optional, Tuple

import torch

from ignite_ipu.emulator.optim.description import GroupValues, OptimizerDescription, UpdateRule
from ignite_ipu.emulator.optim.device import foreach
from ignite_ipu.emulator.optim.device.foreach import Tensors
from ignite_ipu.torch_names import lists

Factor = Optional[torch.Tensor]

ACCL1, ACCL2, ACCL3 = "Accl1", "Accl2", "Accl3"


@dataclasses.dataclass
class Slot:
    """One weight and the state that the optimizer keeps for it."""

    name: str
    weight: torch.Tensor
    group: Optional[int]  # None takes the defaults
    grouped: bool  # whether dimension 0 counts groups of replicas with their own values
    states: Dict[str, torch.Tensor]  # by kind
    steps: float = 0.0  # updates so far
    in_force: Optional[GroupValues] = None  # terms that combined SGD has already folded into its state


class Bucket:
    """Weights of one group and type that have seen the same number of updates, and are updated together.

    The weights and, by kind, their states are in lists in the order of the slots; all else is as in each slot.
    """

    def __init__(self, slots: List[Slot], fused: bool = False) -> None:
        first = slots[0]
        self.slots = slots
        self.group, self.grouped, self.steps, self.in_force = first.group, first.grouped, first.steps, first.in_force
        self.weights = [slot.weight for slot in slots]
        self.states = {kind: [slot.states[kind] for slot in slots] for kind in first.states}
        self.fused = fused and foreach.fusible(self.weights, *self.states.values())


@dataclasses.dataclass
class UpdateFormula(abc.ABC):
    """One optimizer's maths."""

    store: foreach.Store

    @abc.abstractmethod
    def states(self, values: GroupValues) -> Dict[str, Tuple[int, float]]:
        """Return the kinds of state a weight needs: which of the moment types it has (2: float32), where it starts."""

    @abc.abstractmethod
    def update(self, bucket: Bucket, grads: Tensors, values: GroupValues) -> None:
        """Advance the state by one gradient and move the weights."""


@dataclasses.dataclass
class Sgd(UpdateFormula):
    """SGD with its velocity in a tensor of its own, multiplied by the loss scaling that is in force.

    Without momentum: w -= lr * (1 - d) * (g + l * w). Otherwise v = m * v + (1 - d) * (g + l * w), and w -= lr * v, or
    w -= lr * (g + l * w + m * v) with Nesterov's correction. Unlike torch's, the dampening scales the momentum-free
    update and the first velocity too. An update has two parts because a bound on the norm acts between them.
    """

    _fuses = True

    loss_scaling: float

    def states(self, values: GroupValues) -> Dict[str, Tuple[int, float]]:
        return {} if values.absent("momentum") else {ACCL1: (0, 0.0)}

    def update(self, bucket: Bucket, grads: Tensors, values: GroupValues) -> None:
        velocity = bucket.states.get(ACCL1)
        as_torchs = self._fuses and self.loss_scaling == 1 and values["momentum"] != 0
        if velocity and bucket.fused and as_torchs and foreach.fusible(grads):
            lists.fused_sgd_(
                bucket.weights,
                grads,
                velocity,
                lr=values["lr"],
                momentum=values["momentum"],
                dampening=values["dampening"],
                weight_decay=values["weight_decay"],
                nesterov=bool(values["nesterov"]),
                maximize=False,
                is_first_step=False,
            )
        else:
            self.apply(bucket, self.direction(bucket, grads, values), values, None)

    def direction(self, bucket: Bucket, grads: Tensors, values: GroupValues) -> Tensors:
        """Advance the state by one gradient and return the input of the weight update."""
        return grads if values.absent("momentum") else self._velocity(bucket, grads, values)

    def scaling(self, bucket: Bucket, values: GroupValues) -> float:
        """Return the factor that the direction carries."""
        in_force = bucket.in_force or values
        return 1.0 if values.absent("momentum") or in_force["nesterov"] else self._velocity_scaling(bucket)

    def apply(self, bucket: Bucket, direction: Tensors, values: GroupValues, factor: Factor) -> None:
        """Move the weights along `factor` times the direction; None stands for 1."""
        if factor is not None:
            direction = foreach.times(direction, factor)
        if values.absent("momentum"):
            direction = _decayed(direction, bucket.weights, values["weight_decay"])
            amount = values["lr"] * (1 - values["dampening"])
        else:
            amount = values["lr"] / self.scaling(bucket, values)
        foreach.move(bucket.weights, direction, -amount, 1.0, self.store)

    def _velocity_scaling(self, bucket: Bucket) -> float:
        return self.loss_scaling

    def _velocity(self, bucket: Bucket, grads: Tensors, values: GroupValues) -> Tensors:
        decayed = _decayed(grads, bucket.weights, values["weight_decay"])
        momentum, gain = values["momentum"], (1 - values["dampening"]) * self.loss_scaling
        velocity = foreach.decay(bucket.states[ACCL1], momentum, decayed, gain, self.store)
        if values["nesterov"]:
            return lists.add(decayed, velocity, alpha=momentum / self.loss_scaling)
        return velocity


class CombinedSgd(Sgd):
    """SGD whose velocity tensor also accumulates the gradients.

    At the end of an update the tensor already holds the next one's m * v + (1 - d) * l * w, times the velocity scaling.
    So all values but lr that are set between two updates act on the second one after them.
    """

    _fuses = False

    def states(self, values: GroupValues) -> Dict[str, Tuple[int, float]]:
        # The types of separate accumulators say nothing about a shared one.
        return {kind: (2, start) for kind, (_, start) in super().states(values).items()}

    def apply(self, bucket: Bucket, direction: Tensors, values: GroupValues, factor: Factor) -> None:
        super().apply(bucket, direction, values, factor)
        if not values.absent("momentum"):
            rescaling = values["velocity_scaling"] / self._velocity_scaling(bucket)
            lists.mul_(bucket.states[ACCL1], values["momentum"] * rescaling)
            self.fold_weight_decay(bucket, values)

    def fold_weight_decay(self, bucket: Bucket, values: GroupValues) -> None:
        """Add the next update's weight decay, so that these values are in force for it."""
        amount = (1 - values["dampening"]) * values["weight_decay"] * values["velocity_scaling"]
        if amount != 0:
            lists.add_(bucket.states[ACCL1], bucket.weights, alpha=amount)
        bucket.in_force = values

    def _velocity_scaling(self, bucket: Bucket) -> float:
        assert bucket.in_force is not None
        return bucket.in_force["velocity_scaling"]

    def _velocity(self, bucket: Bucket, grads: Tensors, values: GroupValues) -> Tensors:
        folded, accumulator = bucket.in_force or values, bucket.states[ACCL1]
        scaling = folded["velocity_scaling"]
        lists.add_(accumulator, grads, alpha=(1 - folded["dampening"]) * scaling)
        if folded["nesterov"]:
            decayed = _decayed(grads, bucket.weights, folded["weight_decay"])
            return lists.add(decayed, accumulator, alpha=folded["momentum"] / scaling)
        return accumulator


@dataclasses.dataclass
class Adam(UpdateFormula):
    """Adam, with weight decay added to the gradient (L2) or to the step (`decoupled`).

    m = b1 * m + (1 - b1) * s and v = b2 * v + (1 - b2) * s^2, where s is g, or g + l * w for L2. Then w -= lr * x with
    x = m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps), plus l * w if decoupled.
    """

    decoupled: bool
    corrected: bool = True

    def states(self, values: GroupValues) -> Dict[str, Tuple[int, float]]:
        return {ACCL1: (0, 0.0), ACCL2: (1, 0.0)}

    def update(self, bucket: Bucket, grads: Tensors, values: GroupValues) -> None:
        if bucket.fused and foreach.fusible(grads):
            fused = lists.fused_adamw_ if self.decoupled else lists.fused_adam_
            fused(
                bucket.weights,
                grads,
                bucket.states[ACCL1],
                bucket.states[ACCL2],
                [],
                [torch.tensor(bucket.steps + 1)] * len(bucket.weights),
                lr=values["lr"],
                beta1=values["beta1"],
                beta2=values["beta2"],
                weight_decay=values["weight_decay"],
                eps=values["eps"],
                amsgrad=False,
                maximize=False,
            )
            return
        if not self.decoupled:
            grads = _decayed(grads, bucket.weights, values["weight_decay"])
        first, root = self._moments(bucket, grads, values)
        lr = values["lr"]
        keep = 1 - lr * values["weight_decay"] if self.decoupled else 1.0
        amount = _quotient(lr, self._correction(values["beta1"], bucket))
        foreach.move_by_ratio(bucket.weights, first, root, -amount, keep, self.store)

    def _moments(self, bucket: Bucket, grads: Tensors, values: GroupValues) -> Tuple[Tensors, Tensors]:
        """Advance both moments; return the first, uncorrected, and the corrected root of the second plus eps."""
        first = foreach.average(bucket.states[ACCL1], values["beta1"], grads, self.store)
        second = foreach.average_square(bucket.states[ACCL2], values["beta2"], grads, self.store)
        root = lists.sqrt(second)
        lists.div_(root, _root(self._correction(values["beta2"], bucket)))
        lists.add_(root, values["eps"])
        return first, root

    def _correction(self, beta: float, bucket: Bucket) -> float:
        return 1 - _power(beta, bucket.steps + 1) if self.corrected else 1.0


class Lamb(Adam):
    """AdamW's step, for each tensor multiplied by min(||w||, max_weight_norm) / ||x||, or by 1 if either is 0."""

    def update(self, bucket: Bucket, grads: Tensors, values: GroupValues) -> None:
        first, root = self._moments(bucket, grads, values)
        step = lists.div(first, root)
        lists.div_(step, self._correction(values["beta1"], bucket))
        if values["weight_decay"] != 0:
            lists.add_(step, bucket.weights, alpha=values["weight_decay"])
        weight_norms, step_norms = (foreach.norms(tensors, bucket.grouped) for tensors in (bucket.weights, step))
        limit = float(values["max_weight_norm"])
        if bucket.grouped:
            ratios = [_trust(weight, own, limit) for weight, own in zip(weight_norms, step_norms)]
        else:
            ratios = list(_trust(torch.stack(weight_norms), torch.stack(step_norms), limit).unbind())
        lists.mul_(step, ratios)
        foreach.move(bucket.weights, step, -values["lr"], 1.0, self.store)


@dataclasses.dataclass
class RmsProp(UpdateFormula):
    """RMSprop: `Accl1` is the mean square v, `Accl2` the mean a of `centered`, `Accl3` the momentum b.

    With s = g + l * w: v = alpha * v + (1 - alpha) * s^2, a likewise of s, x = s / (sqrt(v - a^2) + eps), and
    b = m * b + x, w -= lr * b. TensorFlow's variant starts v at 1, adds eps under the root, and has b = m * b + lr * x,
    w -= b.
    """

    centered: bool
    tf_variant: bool

    def states(self, values: GroupValues) -> Dict[str, Tuple[int, float]]:
        states = {ACCL1: (0, 1.0 if self.tf_variant else 0.0)}
        if self.centered:
            states[ACCL2] = (1, 0.0)
        if not values.absent("momentum"):
            states[ACCL3] = (2, 0.0)
        return states

    def update(self, bucket: Bucket, grads: Tensors, values: GroupValues) -> None:
        grads = _decayed(grads, bucket.weights, values["weight_decay"])
        root, lr = self._root(bucket, grads, values), values["lr"]
        if values.absent("momentum"):
            foreach.move_by_ratio(bucket.weights, grads, root, -lr, 1.0, self.store)
            return
        momentum = bucket.states[ACCL3]
        lists.mul_(momentum, values["momentum"])
        lists.addcdiv_(momentum, grads, root, lr if self.tf_variant else 1.0)
        foreach.move(bucket.weights, momentum, -1.0 if self.tf_variant else -lr, 1.0, self.store)

    def _root(self, bucket: Bucket, grads: Tensors, values: GroupValues) -> Tensors:
        alpha, eps = values["alpha"], values["eps"]
        square = foreach.average_square(bucket.states[ACCL1], alpha, grads, self.store)
        # The state itself must survive: the root is taken in place only of derived tensors.
        if self.centered:
            mean = foreach.average(bucket.states[ACCL2], alpha, grads, self.store)
            root = lists.addcmul(square, mean, mean, -1)
            if self.tf_variant:
                lists.add_(root, eps)
            lists.sqrt_(root)
        elif self.tf_variant:
            root = lists.add(square, eps)
            lists.sqrt_(root)
        else:
            root = lists.sqrt(square)
        if not self.tf_variant:
            lists.add_(root, eps)
        return root


def rule_for(description: OptimizerDescription, store: foreach.Store) -> UpdateFormula:
    """Return the maths of an optimizer, rounding float16 state by `store`."""
    kind = description.kind
    if kind in (UpdateRule.SGD1, UpdateRule.SGD2):
        return (CombinedSgd if kind is UpdateRule.SGD1 else Sgd)(store, description.loss_scaling.value)
    if kind in (UpdateRule.RMSPROP, UpdateRule.RMSPROP_CENTERED):
        return RmsProp(store, kind is UpdateRule.RMSPROP_CENTERED, description.use_tf_variant)
    if kind in (UpdateRule.LAMB, UpdateRule.LAMB_NO_BIAS):
        return Lamb(store, decoupled=True, corrected=kind is UpdateRule.LAMB)
    # PopTorch compiles AdamW without bias correction to the same program as AdamW with it.
    return Adam(store, decoupled=kind is not UpdateRule.ADAM)


def _decayed(grads: Tensors, weights: Tensors, weight_decay: float) -> Tensors:
    return lists.add(grads, weights, alpha=weight_decay) if weight_decay != 0 else grads


# As float arithmetic has it, where Python raises: a loaded count of steps may be any number.


def _power(base: float, exponent: float) -> float:
    try:
        return float(base**exponent)
    except (ZeroDivisionError, OverflowError):
        return math.inf


def _quotient(dividend: float, divisor: float) -> float:
    if divisor:
        return dividend / divisor
    return dividend * math.copysign(math.inf, divisor)


def _root(value: float) -> float:
    return math.sqrt(value) if value >= 0 else math.nan


def _trust(weight_norms: torch.Tensor, step_norms: torch.Tensor, limit: float) -> torch.Tensor:
    weight_norms = weight_norms.clamp(max=limit)
    ratio = weight_norms / step_norms
    return torch.where((weight_norms == 0) | (step_norms == 0), torch.ones_like(ratio), ratio)
