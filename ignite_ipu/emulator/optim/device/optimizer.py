"""The optimizer on the device: its state, and one update of all weights from their gradients."""

from __future__ import annotations

import dataclasses
import itertools
import math
import operator
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import torch

from ignite_ipu.emulator.errors import backend_error
from ignite_ipu.emulator.logs import logger
from ignite_ipu.emulator.optim.description import OptimizerDescription
from ignite_ipu.emulator.optim.device import foreach
from ignite_ipu.emulator.optim.device.updates import Bucket, CombinedSgd, Sgd, SgdRule, rule_for
from ignite_ipu.emulator.optim.device.values import device_values
from ignite_ipu.emulator.optim.hyper_parameters import HyperParameters, UpdateRule
from ignite_ipu.emulator.optim.optimizer import IpuState
from ignite_ipu.emulator.values.replica_groups import ReplicaGroups

STEP = "Step"
_UPDATE_FACTOR = "lossScaleUpdateFactor"
# Elements of weights whose update is computed at once: several tensors of as many are needed in between.
_MOST_AT_ONCE = 1 << 22
_COUNTED = (UpdateRule.ADAM, UpdateRule.ADAMW, UpdateRule.ADAMW_NO_BIAS, UpdateRule.LAMB, UpdateRule.LAMB_NO_BIAS)
Grads = Sequence[Optional[torch.Tensor]]


@dataclasses.dataclass
class _Slot:
    """State that the optimizer keeps for one weight."""

    name: str
    weight: torch.Tensor
    group: Optional[int]
    grouped: bool
    states: Dict[str, torch.Tensor]
    steps: float = 0.0
    in_force: Optional[HyperParameters] = None


@dataclasses.dataclass
class _Work:
    """One bucket, where its gradients are found, and whose state it holds."""

    bucket: Bucket
    group: Optional[int]
    slots: List[_Slot]
    pick: Callable[[Any], List[torch.Tensor]]


class DeviceOptimizer:
    """Updates weights in place as the compiled program would; its state starts afresh.

    Args:
        description: The optimizer compiled for.
        named_weights: The trainable weights, whose storage this object updates. Refill them in place.
        group_of: The parameter group of each weight; None for one in no group, which takes the defaults.
        per_replica: Groups of replicas with values of their own, by the weights whose dimension 0 counts them. LAMB's
            norms are then taken for each of these; everything else works element by element.
        store: How float32 results become float16 weights and state, for instance with stochastic rounding.
        adapts_loss_scaling: Whether the device adapts the loss scaling, by a factor that is state of its own then.

    Raises:
        Error: Gradients are to be clipped while weights differ between replicas: each replica would clip the weights
            they share by another factor.
    """

    def __init__(
        self,
        description: OptimizerDescription,
        named_weights: Dict[str, torch.Tensor],
        group_of: Mapping[str, Optional[int]],
        per_replica: Optional[Mapping[str, ReplicaGroups]] = None,
        store: foreach.Store = foreach.store_nearest,
        adapts_loss_scaling: bool = False,
    ) -> None:
        if per_replica and description.max_grad_norm != math.inf:
            raise backend_error(
                f"max_grad_norm={description.max_grad_norm} cannot bound gradients while parameters differ between "
                f"replicas ({', '.join(sorted(per_replica))}): the replicas would clip shared parameters differently."
            )
        self._description = description
        self._adapts_loss_scaling = adapts_loss_scaling
        self._update_factor = 1.0
        self._replica_groups = per_replica or {}
        self._rule = rule_for(description, store)
        self._slots = [
            _Slot(
                name, weight, group_of[name], name in self._replica_groups, self._fresh_states(weight, group_of[name])
            )
            for name, weight in named_weights.items()
        ]
        self._work: List[_Work] = []
        self._missing: Optional[Tuple[bool, ...]] = None
        # Combined SGD folds the first weight decay in when the program starts, from the values it was compiled with.
        self._first_values = {slot.group: description.values(slot.group) for slot in self._slots}
        # What the host is told of the hyper-parameters; the update goes by the description.
        self._told = self._device_values()

    @property
    def loss_scaling(self) -> float:
        """The factor on the loss gradient: the user's, times that by which the device adapts it."""
        return self._description.loss_scaling.value * self._update_factor

    def adapt_loss_scaling(self, value: float) -> None:
        """Make another loss scaling the one in force; what is stored keeps the user's."""
        self._update_factor *= value / self.loss_scaling

    @property
    def state_bytes(self) -> int:
        """Bytes of all moments together."""
        return sum(state.numel() * state.element_size() for slot in self._slots for state in slot.states.values())

    @torch.no_grad()
    def update(self, grads: Grads) -> None:
        """Take one step with reduced gradients that loss scaling has been divided out of.

        Args:
            grads: One for each weight, in the order of `named_weights`; a weight without one is left alone. They keep
                their values.
        """
        missing = tuple(map(operator.is_, grads, itertools.repeat(None)))
        if missing != self._missing:
            self._regroup(missing)
        if not self._work:
            return
        picked = [work.pick(grads) for work in self._work]
        lists: List[foreach.Tensors] = [foreach.widened(each) if foreach.narrow(each) else each for each in picked]
        bound = self._description.max_grad_norm
        if bound == math.inf:
            for work, each in zip(self._work, lists):
                self._rule.update(work.bucket, each, self._values(work))
        elif isinstance(self._rule, SgdRule):
            self._update_with_bounded_directions(self._rule, lists, bound)
        else:
            factor = _clip_factor(foreach.global_norm([(each, 1.0) for each in lists]), bound)
            for work, each in zip(self._work, lists):
                self._rule.update(work.bucket, foreach.times(each, factor), self._values(work))
        for work in self._work:
            work.bucket.steps += 1.0

    def set_description(self, new: OptimizerDescription) -> None:
        """Go on with the values of `new`, a valid replacement of the description compiled for.

        Stored velocities, which are multiplied by the loss scaling of their time, stay as they are.
        """
        self._description = new
        if isinstance(self._rule, Sgd):
            self._rule.loss_scaling = new.loss_scaling.value
        self._told = self._device_values()

    def restart(self) -> None:
        """Set the state to what it was before the first update."""
        self._work, self._missing = [], None
        for slot in self._slots:
            slot.states = self._fresh_states(slot.weight, slot.group)
            slot.steps, slot.in_force = 0.0, None
        self._update_factor = 1.0
        self._first_values = {slot.group: self._description.values(slot.group) for slot in self._slots}

    @torch.no_grad()
    def read_state(self) -> IpuState:
        """Return copies of the state by name, and the variable hyper-parameters by name."""
        self._put_back()
        self._begin(self._slots)
        state: Dict[str, torch.Tensor] = {}
        for slot in self._slots:
            groups = self._replica_groups.get(slot.name)
            for kind, tensor in slot.states.items():
                state[f"{kind}___{slot.name}"] = tensor.clone() if groups is None else groups.to_host(tensor).clone()
            if self._counts_steps:
                state[f"{STEP}___{slot.name}"] = torch.full(self._steps_shape(slot), slot.steps, dtype=torch.float32)
        if self._adapts_loss_scaling:
            state[_UPDATE_FACTOR] = torch.tensor(self._update_factor, dtype=torch.float32)
        return state, dict(self._told)

    @torch.no_grad()
    def write_state(self, ipu_state: Mapping[str, torch.Tensor], ipu_param: Mapping[str, torch.Tensor]) -> None:
        """Take over a state by name; what is missing in it stays as it is, with a warning for each name.

        Hyper-parameters come from descriptions: those of `ipu_param` are only what is read back. None at all mean that
        the state was saved elsewhere, by an optimizer that has none.

        Raises:
            Error: A tensor has the wrong number of elements; nothing has been written then.
        """
        self._put_back()
        self._begin(self._slots)
        own: Dict[str, torch.Tensor] = {}
        steps: Dict[str, float] = {}
        for slot in self._slots:
            for kind, tensor in slot.states.items():
                name = f"{kind}___{slot.name}"
                if name in ipu_state:
                    own[name] = self._loaded(slot, name, ipu_state[name], tensor.shape)
            name = f"{STEP}___{slot.name}"
            if self._counts_steps and name in ipu_state:
                groups = self._replica_groups.get(slot.name)
                shape = torch.Size() if groups is None else torch.Size((groups.count,))
                counts = self._loaded(slot, name, ipu_state[name], shape)
                steps[slot.name] = self._one_count(name, counts)
        known, values = self.read_state()
        for name in (*known, *(values if ipu_param else ())):
            if name not in ipu_state and name not in ipu_param:
                logger.warning("The loaded optimizer state lacks %s: the device keeps its own.", name)
        for slot in self._slots:
            slot.steps = steps.get(slot.name, slot.steps)
            for kind, tensor in slot.states.items():
                if f"{kind}___{slot.name}" in own:
                    tensor.copy_(own[f"{kind}___{slot.name}"])
        if self._adapts_loss_scaling and _UPDATE_FACTOR in ipu_state:
            self._update_factor = float(ipu_state[_UPDATE_FACTOR])
        self._told = {**values, **{name: ipu_param[name].clone() for name in values if name in ipu_param}}
        self._work, self._missing = [], None

    def _loaded(self, slot: _Slot, name: str, value: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        """Return a loaded tensor as the device has it: one slice for each group of replicas, where there are any."""
        groups = self._replica_groups.get(slot.name)
        if groups is not None and value.dim():
            value = groups.from_host(value)
        if value.numel() != shape.numel():
            raise backend_error(
                f"The optimizer state {name} to load has shape {tuple(value.shape)}, the device's {tuple(shape)}: "
                "it was saved from another model."
            )
        return value.reshape(shape)

    def _steps_shape(self, slot: _Slot) -> torch.Size:
        groups = self._replica_groups.get(slot.name)
        return torch.Size() if groups is None else groups.to_host(torch.zeros(groups.count)).shape

    def _one_count(self, name: str, counts: torch.Tensor) -> float:
        first = counts.reshape(-1)[0]
        if not bool(((counts == first) | (counts.isnan() & first.isnan())).all()):
            raise backend_error(
                f"The optimizer state {name} to load has the step counts {counts.tolist()}, one for each group of "
                "replicas; the emulator counts the steps of all of them together. Load equal ones."
            )
        return float(first.to(torch.float32))

    @property
    def _counts_steps(self) -> bool:
        return self._description.kind in _COUNTED

    def _device_values(self) -> Dict[str, torch.Tensor]:
        groups = {slot.name: slot.group for slot in self._slots}
        return device_values(self._description, groups)

    def _fresh_states(self, weight: torch.Tensor, group: Optional[int]) -> Dict[str, torch.Tensor]:
        types = (*self._description.moment_types, torch.float32)
        return {
            kind: torch.full_like(weight, start, dtype=types[which], requires_grad=False)
            for kind, (which, start) in self._rule.states(self._description.values(group)).items()
        }

    def _values(self, work: _Work) -> HyperParameters:
        return self._description.values(work.group)

    def _update_with_bounded_directions(self, rule: SgdRule, lists: List[foreach.Tensors], bound: float) -> None:
        directions = [rule.direction(w.bucket, grads, self._values(w)) for w, grads in zip(self._work, lists)]
        scalings = [rule.scaling(w.bucket, self._values(w)) for w in self._work]
        factor = _clip_factor(foreach.global_norm(list(zip(directions, scalings))), bound)
        for work, direction in zip(self._work, directions):
            rule.apply(work.bucket, direction, self._values(work), factor)

    def _regroup(self, missing: Tuple[bool, ...]) -> None:
        """Prepare lists of weights to update together, for gradients that are missing in the same places as now."""
        self._put_back()
        present = [(index, slot) for index, slot in enumerate(self._slots) if not missing[index]]
        self._begin([slot for _, slot in present])
        members: Dict[Tuple[object, ...], List[int]] = {}
        for index, slot in present:
            key = (slot.group, slot.weight.dtype, slot.grouped, slot.steps, slot.in_force)
            members.setdefault(key, []).append(index)
        self._work = [self._prepared(part) for indices in members.values() for part in self._parts(indices)]
        self._missing = missing

    def _parts(self, indices: List[int]) -> Iterator[List[int]]:
        """Yield runs of weights that are not too large together for what an update computes in between."""
        part, elements = [], 0  # type: List[int], int
        for index in indices:
            more = self._slots[index].weight.numel()
            if part and elements + more > _MOST_AT_ONCE:
                yield part
                part, elements = [], 0
            part.append(index)
            elements += more
        yield part

    def _prepared(self, indices: List[int]) -> _Work:
        slots = [self._slots[index] for index in indices]
        first = slots[0]
        bucket = Bucket(
            weights=[slot.weight for slot in slots],
            states={kind: [slot.states[kind] for slot in slots] for kind in first.states},
            steps=first.steps,
            grouped=first.grouped,
            in_force=first.in_force,
        )
        return _Work(bucket, first.group, slots, _picker(indices))

    def _put_back(self) -> None:
        """Hand what the buckets count back to the weights."""
        for work in self._work:
            for slot in work.slots:
                slot.steps, slot.in_force = work.bucket.steps, work.bucket.in_force

    def _begin(self, slots: List[_Slot]) -> None:
        """Give weights that were never updated the state that the program starts them with."""
        if not isinstance(self._rule, CombinedSgd):
            return
        for slot in slots:
            if slot.in_force is None and slot.states:
                values = self._first_values[slot.group]
                alone = Bucket([slot.weight], {k: [s] for k, s in slot.states.items()}, 0, slot.grouped, None)
                self._rule.fold_weight_decay(alone, values)
                slot.in_force = values


def _clip_factor(norm: torch.Tensor, bound: float) -> torch.Tensor:
    # No epsilon: a bound of zero on a zero gradient is the device's 0 / 0.
    # Divided, not multiplied by a reciprocal: below the bound the factor is 1 exactly.
    return torch.zeros_like(norm).add(float(bound)).div(norm.clamp(min=float(bound)))


def _picker(indices: List[int]) -> Callable[[Any], List[torch.Tensor]]:
    if len(indices) == 1:
        only = indices[0]
        return lambda grads: [grads[only]]
    get = operator.itemgetter(*indices)
    return lambda grads: list(get(grads))
