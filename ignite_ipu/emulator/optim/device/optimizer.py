"""The optimizer on the device: its state, and one update of all weights from their gradients."""

from __future__ import annotations

import itertools
import math
import operator
from typing import Any, Callable, Collection, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import torch

from ignite_ipu.emulator.errors import backend_error
from ignite_ipu.emulator.logs import logger
from ignite_ipu.emulator.optim.description import GroupValues, OptimizerDescription, UpdateRule
from ignite_ipu.emulator.optim.device import foreach
from ignite_ipu.emulator.optim.device.updates import Adam, Bucket, CombinedSgd, Sgd, Slot, rule_for
from ignite_ipu.emulator.optim.optimizer import IpuState
from ignite_ipu.emulator.values.replica_groups import ReplicaGroups

STEP = "Step"
_UPDATE_FACTOR = "lossScaleUpdateFactor"
# Elements of weights whose update is computed at once: several tensors of as many are needed in between.
_MOST_AT_ONCE = 1 << 22
Grads = Sequence[Optional[torch.Tensor]]


class DeviceOptimizer:
    """Updates weights in place as the compiled program would; its state starts afresh.

    Args:
        named_weights: The trainable weights, whose storage this object updates. Refill them in place.
        group_of: The parameter group of each weight; None for one in no group, which takes the defaults.
        per_replica: Groups of replicas with values of their own, by the weights whose dimension 0 counts them. LAMB's
            norms are then taken for each of these; everything else works element by element.
        store: How float32 results become float16 weights and state, for instance with stochastic rounding.
        fused: Whether PyTorch's fused updates may be used, which round otherwise than those of its optimizers' default.
        adapts_loss_scaling: Whether the device adapts the loss scaling, by a factor that is state of its own then.
        differentiated: Names of the weights that the loss depends on; None for all. Others are never updated and have
            no state.
    """

    def __init__(
        self,
        description: OptimizerDescription,
        named_weights: Dict[str, torch.Tensor],
        group_of: Mapping[str, Optional[int]],
        per_replica: Optional[Mapping[str, ReplicaGroups]] = None,
        store: foreach.Store = foreach.store_nearest,
        fused: bool = False,
        adapts_loss_scaling: bool = False,
        differentiated: Optional[Collection[str]] = None,
    ) -> None:
        if per_replica and description.max_grad_norm != math.inf:
            raise backend_error(
                f"max_grad_norm={description.max_grad_norm} cannot bound gradients while parameters differ between "
                f"replicas ({', '.join(sorted(per_replica))}): the replicas would clip shared parameters differently."
            )
        self._description = description
        self._adapts_loss_scaling = adapts_loss_scaling
        self._replica_groups = per_replica or {}
        self._rule = rule_for(description, store)
        self._fused = fused
        self._slots = [
            Slot(name, weight, group_of[name], name in self._replica_groups, {})
            for name, weight in named_weights.items()
        ]
        self._updated = [slot for slot in self._slots if differentiated is None or slot.name in differentiated]
        self.restart()
        # The host's view of the hyper-parameters; the update uses the description.
        self._group_of = group_of
        self._sent = device_values(description, group_of)

    @property
    def loss_scaling(self) -> float:
        """The factor on the loss gradient: the user's, times that by which the device adapts it."""
        return self._description.loss_scaling.value * self._update_factor

    def adapt_loss_scaling(self, value: float) -> None:
        """Change the loss scaling in force; stored values keep the user's."""
        self._update_factor *= value / self.loss_scaling

    @property
    def has_state(self) -> bool:
        """True if updates depend on those before."""
        return self._adapts_loss_scaling or any([slot.states for slot in self._slots])

    @property
    def state_bytes(self) -> int:
        """Bytes of all moments together."""
        return sum(state.numel() * state.element_size() for slot in self._slots for state in slot.states.values())

    def update(self, grads: Grads) -> None:
        """Take one step with reduced gradients, one for each weight, that loss scaling has been divided out of.

        Callers have switched gradients off.

        A weight without one is left alone, and the gradients keep their values.
        """
        missing = tuple(map(operator.is_, grads, itertools.repeat(None)))
        if missing != self._missing:
            self._regroup(missing)
        if not self._work:
            return
        picked = [pick(grads) for _, pick in self._work]
        lists: List[foreach.Tensors] = [foreach.widened(each) if foreach.narrow(each) else each for each in picked]
        work = [(bucket, each, self._description.values(bucket.group)) for (bucket, _), each in zip(self._work, lists)]
        rule, bound = self._rule, self._description.max_grad_norm
        if bound == math.inf:
            for bucket, each, values in work:
                rule.update(bucket, each, values)
        elif isinstance(rule, Sgd):
            directions = [rule.direction(*arguments) for arguments in work]
            scalings = [rule.scaling(bucket, values) for bucket, _, values in work]
            factor = _clip_factor(foreach.global_norm(list(zip(directions, scalings))), bound)
            for (bucket, _, values), direction in zip(work, directions):
                rule.apply(bucket, direction, values, factor)
        else:
            factor = _clip_factor(foreach.global_norm([(each, 1.0) for each in lists]), bound)
            for bucket, each, values in work:
                rule.update(bucket, foreach.times(each, factor), values)
        for bucket, _ in self._work:
            bucket.steps += 1.0

    def set_description(self, new: OptimizerDescription) -> None:
        """Go on with the values of `new`, a valid replacement of the description compiled for.

        Stored velocities, which are multiplied by the loss scaling of their time, stay as they are.
        """
        self._description = new
        if isinstance(self._rule, Sgd):
            self._rule.loss_scaling = new.loss_scaling.value
        self._sent = device_values(new, self._group_of)

    def restart(self) -> None:
        """Reset the state to that before the first update."""
        # The buckets, and the selection of each one's gradients.
        self._work: List[Tuple[Bucket, Callable[[Any], List[torch.Tensor]]]] = []
        self._missing: Optional[Tuple[bool, ...]] = None
        types = (*self._description.moment_types, torch.float32)
        for slot in self._updated:
            slot.steps, slot.in_force = 0.0, None
            slot.states = {
                kind: torch.full_like(slot.weight, start, dtype=types[which], requires_grad=False)
                for kind, (which, start) in self._rule.states(self._description.values(slot.group)).items()
            }
        self._update_factor = 1.0
        # Combined SGD folds the first weight decay in when the program starts, from the values it was compiled with.
        self._first_values = {slot.group: self._description.values(slot.group) for slot in self._slots}

    @torch.no_grad()
    def read_state(self) -> IpuState:
        """Return copies of the state by name, and the variable hyper-parameters by name."""
        state: Dict[str, torch.Tensor] = {}
        for name, (slot, _, value) in self._state().items():
            groups = self._replica_groups.get(slot.name)
            state[name] = (value if groups is None else groups.to_host(value)).clone()
        if self._adapts_loss_scaling:
            state[_UPDATE_FACTOR] = torch.tensor(self._update_factor, dtype=torch.float32)
        return state, dict(self._sent)

    @torch.no_grad()
    def write_state(self, ipu_state: Mapping[str, torch.Tensor], ipu_param: Mapping[str, torch.Tensor]) -> None:
        """Take over a state by name; missing entries are unchanged, with a warning for each name.

        Hyper-parameters come from descriptions: those of `ipu_param` are only read back. None at all mean that
        the state was saved elsewhere, by an optimizer that has none. After an error nothing has been written.
        """
        own = self._state()
        loaded = {}
        for name in [name for name in own if name in ipu_state]:
            slot, kind, value = own[name]
            loaded[name] = self._loaded(slot, name, ipu_state[name], value.shape)
            counts = loaded[name].reshape(-1)
            if kind == STEP and not bool(((counts == counts[0]) | (counts.isnan() & counts[0].isnan())).all()):
                raise backend_error(
                    f"The optimizer state {name} to load has the step counts {loaded[name].tolist()}, one for each "
                    "group of replicas; the emulator counts the steps of all of them together. Load equal ones."
                )
        known, values = self.read_state()
        for name in (*known, *(values if ipu_param else ())):
            if name not in ipu_state and name not in ipu_param:
                logger.warning("The loaded optimizer state lacks %s: the device keeps its own.", name)
        for name, new in loaded.items():
            slot, kind, value = own[name]
            value.copy_(new)
            if kind == STEP:
                slot.steps = float(value.reshape(-1)[0])
        if self._adapts_loss_scaling and _UPDATE_FACTOR in ipu_state:
            self._update_factor = float(ipu_state[_UPDATE_FACTOR])
        self._sent = {**values, **{name: ipu_param[name].clone() for name in values if name in ipu_param}}
        self._work, self._missing = [], None

    def _state(self) -> Dict[str, Tuple[Slot, str, torch.Tensor]]:
        """Return all state by name: whose it is, of which kind, and the device's tensor, made anew for the steps."""
        self._put_back()
        self._begin(self._updated)
        found = {}
        for slot in self._updated:
            tensors = dict(slot.states)
            if isinstance(self._rule, Adam):
                groups = self._replica_groups.get(slot.name)
                tensors[STEP] = torch.full(() if groups is None else (groups.count,), slot.steps, dtype=torch.float32)
            found.update({f"{kind}___{slot.name}": (slot, kind, tensor) for kind, tensor in tensors.items()})
        return found

    def _loaded(self, slot: Slot, name: str, value: torch.Tensor, shape: torch.Size) -> torch.Tensor:
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

    def _regroup(self, missing: Tuple[bool, ...]) -> None:
        """Prepare lists of weights to update together, for gradients that are missing in the same places as now."""
        self._put_back()
        present = [(index, slot) for index, slot in enumerate(self._slots) if not missing[index]]
        self._begin([slot for _, slot in present])
        members: Dict[Tuple[object, ...], List[int]] = {}
        for index, slot in present:
            key = (slot.group, slot.weight.dtype, slot.grouped, slot.steps, slot.in_force)
            members.setdefault(key, []).append(index)
        self._work = [
            (Bucket([self._slots[index] for index in part], self._fused), _picker(part))
            for indices in members.values()
            for part in self._parts(indices)
        ]
        self._missing = missing

    def _parts(self, indices: List[int]) -> Iterator[List[int]]:
        """Yield runs of weights that are not too large together for the intermediate results of an update."""
        part, elements = [], 0  # type: List[int], int
        for index in indices:
            more = self._slots[index].weight.numel()
            if part and elements + more > _MOST_AT_ONCE:
                yield part
                part, elements = [], 0
            part.append(index)
            elements += more
        yield part

    def _put_back(self) -> None:
        """Return the counts of the buckets to the weights."""
        for bucket, _ in self._work:
            for slot in bucket.slots:
                slot.steps, slot.in_force = bucket.steps, bucket.in_force

    def _begin(self, slots: List[Slot]) -> None:
        """Give weights that were never updated the state that the program starts them with."""
        if not isinstance(self._rule, CombinedSgd):
            return
        for slot in slots:
            if slot.in_force is None and slot.states:
                slot.in_force = self._first_values[slot.group]
                self._rule.fold_weight_decay(Bucket([slot]), slot.in_force)


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


def device_values(description: OptimizerDescription, group_of: Mapping[str, Optional[int]]) -> Dict[str, torch.Tensor]:
    """Return the values that can change without compiling, as scalars of float32.

    They have the names of the device's program, such as `learningRate___specific___fc.weight` and `lossScaling_FLOAT`.
    SGD's are combined into the factors of its update, such as `scaledLearningRate0___specific___fc.weight`.
    """
    found: Dict[str, torch.Tensor] = {}
    loss_scaling = description.loss_scaling.value
    of_group = {group: _variable_entries(description, group) for group in dict.fromkeys(group_of.values())}
    for name, group in group_of.items():
        suffix = "default___FLOAT" if group is None else f"specific___{name}"
        for entry, value in of_group[group]:
            found[f"{entry}___{suffix}"] = torch.tensor(value, dtype=torch.float32)
    if not description.loss_scaling.constant:
        found["lossScaling_FLOAT"] = torch.tensor(loss_scaling, dtype=torch.float32)
    return found


def _variable_entries(description: OptimizerDescription, group: Optional[int]) -> List[Tuple[str, float]]:
    """Return the names of the values of a group that can change, with these."""
    values, scaling = description.values(group), description.loss_scaling
    return [
        (entry, value)
        for entry, value, depends_on in _entries(description, values, scaling.value)
        if not all((scaling if each == "loss_scaling" else values.get(each)).constant for each in depends_on)
    ]


def _entries(
    description: OptimizerDescription, values: GroupValues, loss_scaling: float
) -> Iterator[Tuple[str, float, Tuple[str, ...]]]:
    if description.kind not in (UpdateRule.SGD1, UpdateRule.SGD2):
        for name, value in values.entries:
            first, *others = ("learning_rate" if name == "lr" else name).split("_")
            yield first + "".join(map(str.title, others)), value.value, (name,)
        return
    lr, decay, damped = values["lr"], values["weight_decay"], 1 - values["dampening"]
    if values.absent("momentum"):
        yield "scaledLearningRate0", lr * damped / loss_scaling, ("lr", "dampening", "loss_scaling")
        yield "weightDecayScaleFactor0", 1 - lr * damped * decay, ("lr", "dampening", "weight_decay")
        return
    combined = description.kind is UpdateRule.SGD1
    number, scaling, which = (
        ("1", values["velocity_scaling"], "velocity_scaling") if combined else ("2", loss_scaling, "loss_scaling")
    )
    yield f"scaledLearningRate{number}", lr / scaling, ("lr", which)
    yield f"scaledWeightDecay{number}", damped * decay * scaling, ("dampening", "weight_decay", which)
    yield f"dampeningScaleFactor{number}", damped * scaling / loss_scaling, ("dampening", which, "loss_scaling")
    yield f"scaledMomentum{number}", values["momentum"], ("momentum",)
