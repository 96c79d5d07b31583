"""The user's optimizer as the handle of the one on the device.

Values that the user or a scheduler writes into its `param_groups` reach the device before the next step, once and only
if they changed. Its `state`, `state_dict()` and `load_state_dict()` refer to the state on the device, in torch's
structure.

Parameters of a model that PopTorch has wrapped download the weights when they are touched, so nothing here touches one
after the link is made.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from typing import Any, Callable, Collection, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import nn

from ignite_ipu.errors import OptimizerError, listed, logger
from ignite_ipu.optimizers.changes import Change, HyperParameters, Settings
from ignite_ipu.optimizers.conversion import Conversion
from ignite_ipu.optimizers.held_state import is_held, put_entries
from ignite_ipu.optimizers.host_link import note_earlier_steps
from ignite_ipu.optimizers.linked_optimizer import link_optimizer
from ignite_ipu.optimizers.state import state_from_torch, state_to_torch
from ignite_ipu.poptorch_types import Executor
from ignite_ipu.torch_names.optimizers import STEP_COUNT, STEPPED
from ignite_ipu.torch_names.tensors import version_of

_MOST_NAMES = 8
_State = Dict[str, Any]
_OF_THE_DEVICE = ("ipu_state", "ipu_param")
_REPLACED: List[Any] = ["another mapping"]


@dataclasses.dataclass(frozen=True)
class SavedState:
    """State of a device's optimizer at one moment, after so many weight updates (`steps`).

    PopTorch's `set_state_dict` takes `device`, in which `ipu_state` is None before the first use; velocities in it are
    multiplied by `scaling`.
    """

    device: Dict[str, Any]
    scaling: float
    settings: Settings
    groups: List[Dict[str, Any]]
    steps: int


class OptimizerLink:
    """Keeps a user's optimizer and the device's in step.

    PopTorch ties the device's optimizer to its executor, and so to the model and the IPUs. The user's optimizer refers
    to its link weakly, so a reference to it keeps none of these alive. It is an ordinary optimizer again when the link
    is dropped.

    Args:
        names: Name on the device -> parameter, for every parameter of the compiled module.
        copying: Makes the copies from the device, and retries the ones that fail.
        check_shown: Called before the state is shown or loaded, to refuse that.
    """

    def __init__(
        self,
        conversion: Conversion,
        names: Mapping[str, torch.Tensor],
        copying: Callable[[Callable[[], _State]], _State] = lambda action: action(),
        check_shown: Callable[[], None] = lambda: None,
    ) -> None:
        self.conversion = conversion
        self._copying, self._check_shown = copying, check_shown
        self._source = conversion.source
        self._device = conversion.optimizer
        by_parameter = {id(parameter): name for name, parameter in names.items()}
        parameters = [parameter for group in self._source.param_groups for parameter in group["params"]]
        unnamed = [position for position, parameter in enumerate(parameters) if id(parameter) not in by_parameter]
        if unnamed:
            raise OptimizerError(f"Parameters {unnamed} of the optimizer are not parameters of the compiled module.")
        self._parameters = parameters
        self._names = [by_parameter[id(parameter)] for parameter in parameters]
        self._shapes = [tuple(parameter.shape) for parameter in parameters]
        self._numbers = HyperParameters(conversion)
        # Factor on the velocities at hand, be they on the device or wait to be uploaded.
        self._scaling = float(self.settings.loss_scaling)
        self._newer_on_device = False
        self.steps = _most_steps(self._source.state)  # weight updates made
        self._loaded = self._given_up = False
        # The state as it was shown since the last update, to find out whether it was written into.
        self._shown: Optional[List[Any]] = None
        self._handed_out, self._warned_of_held = True, False  # code may hold state from before
        # Before it has any state.
        self._stand_in = copy.copy(self._device)
        # Checks come first: an optimizer whose link fails is unchanged.
        shows = not conversion.passed_through
        if shows and self._source.__dict__["state"]:
            self._send_state()
        self._let_go = link_optimizer(self._source, self, shows)

    def changes(self) -> Tuple[Change, ...]:
        """Return the differences from the last values sent to the device, in O(number of groups)."""
        return self._numbers.changes()

    def expect_changes(self, names: Iterable[str]) -> None:
        """Make hyper-parameters variable that a schedule changes, before the update is compiled with them.

        Raises:
            OptimizerError: One of them cannot change on an IPU.
        """
        self.conversion = self.conversion.with_variable(frozenset(self.conversion.kind.numbers).intersection(names))

    def push(self, executor: Optional[Executor] = None) -> Tuple[Change, ...]:
        """Send the changes to the device, if there are any; returns them.

        Before the model is compiled everything may change. After that a constant may not: `ConstantAttributeError` is
        raised and nothing sent. There is no executor before a model is wrapped, when PopTorch reads the optimizer.
        """
        if self._shown is not None:
            self._send_edits()
        changes = self._numbers.changes()
        if changes:
            constants: Collection[str] = self.conversion.kind.settled
            if executor is not None and executor.isCompiled():
                constants = {change.attribute for change in changes} - self.conversion.variable
            self._send(changes, constants, executor)
        elif self._scaling != self._numbers.told.loss_scaling:
            self._rescale(self._numbers.told.loss_scaling)
        return changes

    def _send(self, changes: Sequence[Change], constants: Collection[str], executor: Optional[Executor]) -> None:
        numbers = self._numbers
        numbers.refuse(changes, constants)
        # torch leaves the momentum's buffers alone while momentum is zero, and the device does not.
        changed = [each for each in changes if each.attribute == "momentum" and bool(each.old) != bool(each.new)]
        if changed:
            self.refresh_state()
        numbers.apply(changes)
        if executor is not None:
            try:
                executor.setOptimizer(self._device)
            except BaseException:
                # PopTorch keeps a refused value, and cannot read the state until it accepts another one.
                numbers.restore(changes)
                with contextlib.suppress(Exception):
                    executor.setOptimizer(self._device)
                raise
        numbers.note_told()
        self._rescale(self.settings.loss_scaling)
        if any(change.new for change in changed) and not self.conversion.passed_through:
            self._send_state(strict=False)

    def stepped(self, updates: int) -> None:
        """Count `updates` weight updates of the device, for reads of the state and schedules by steps."""
        self._newer_on_device = True
        self._loaded = self._given_up = False
        self.steps += updates
        source = self._source.__dict__
        source[STEPPED] = True
        if STEP_COUNT in source:
            source[STEP_COUNT] += updates
        if self._handed_out:
            self._refresh_held()

    def _refresh_held(self) -> None:
        """Bring state to the host that code holds, since PyTorch's changes with each update."""
        self._handed_out = is_held(self._source.__dict__)
        if not self._handed_out:
            return
        if not self._warned_of_held:
            self._warned_of_held = True
            logger.warning(
                "The loop keeps a state_dict() of %s, or a part of its state, over updates. In eager PyTorch it "
                "changes with each update, so the state is copied to the host after each. copy.deepcopy() of it keeps "
                "the values, and saves the copies.",
                type(self._source).__name__,
            )
        self.refresh_state()
        self._shown = self._signature()

    def note_earlier_steps(self) -> None:
        """Note that there were updates, maybe in a process before this one: schedules may step without a warning."""
        note_earlier_steps(self._source)

    def refresh_state(self) -> None:
        """Bring the state that the user's optimizer shows up to date with the device's."""
        if not self._newer_on_device or self.conversion.passed_through:
            return
        device_state = self._read()["ipu_state"]
        if device_state is None:
            return
        state = state_to_torch(
            device_state,
            self._names,
            self._numbers.groups(told=True),
            self.conversion.kind,
            steps=self.steps,
            loss_scaling=self._scaling,
        )
        shown = self._source.__dict__["state"]
        # State that the device does not have now stays, for frozen parameters or while there is no momentum: it is
        # needed again.
        for number, entries in state.items():
            put_entries(shown.setdefault(self._parameters[number], {}), entries)
        self._newer_on_device = False

    def show_state(self) -> Any:
        """Return the state, as new as the device's; values written into it reach the device with the next update."""
        self._check_shown()
        self.refresh_state()
        state = self._source.__dict__["state"]
        if self._shown is None:
            self._shown = self._signature()
        self._handed_out = True
        return state

    def replace_state(self, state: Any) -> None:
        self._check_shown()
        self._source.__dict__["state"] = state
        self._handed_out = True
        self._newer_on_device = False
        self._shown = _REPLACED

    def _send_edits(self) -> None:
        shown, self._shown = self._shown, None
        if shown is not None and shown != self._signature():
            self.steps = _most_steps(self._source.__dict__["state"])
            self._send_state(strict=False)

    def _signature(self) -> List[Any]:
        """Return the differences if the state was written into."""
        return [
            (id(parameter), name, id(value), version_of(value) if isinstance(value, torch.Tensor) else value)
            for parameter, entries in self._source.__dict__["state"].items()
            for name, value in self._of_the_device(entries).items()
        ]

    def _of_the_device(self, entries: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the entries that the device's update reads; scripts may keep more with a parameter."""
        known = (*self.conversion.kind.slots, "step")
        return {name: value for name, value in entries.items() if name in known}

    def load_state(self, load: Callable[[Dict[str, Any]], None], state_dict: Dict[str, Any]) -> None:
        """Load a torch state dict into the user's optimizer by `load`, and send it to the device."""
        self._check_shown()
        if "ipu_state" in state_dict:
            raise OptimizerError(
                "This state dict was saved by an optimizer of poptorch.optim, not by torch's. Load it into a "
                f"poptorch.optim.{self.conversion.kind.name}."
            )
        stale, self._newer_on_device = self._newer_on_device, False
        try:
            load(state_dict)
        except BaseException:
            self._newer_on_device = stale
            raise
        self._shown = None
        self._handed_out = True  # the loaded tensors may be the caller's
        self.steps = _most_steps(self._source.__dict__["state"])
        self._send_state()

    @property
    def settings(self) -> Settings:
        """The hyper-parameters that the device was told last."""
        return self._numbers.told

    @property
    def loaded(self) -> bool:
        """True if a state was loaded that the device has not trained with yet."""
        ask = self.conversion.passed_through and not self._given_up
        return self._loaded or (ask and bool(self._device.ipu_state_is_dirty))

    def tell(self, executor: Executor, settings: Settings) -> None:
        """Send the device hyper-parameters of an earlier moment, or the current ones again."""
        self._numbers.write(settings)
        executor.setOptimizer(self._device)
        self._rescale(settings.loss_scaling)

    def read(self) -> SavedState:
        """Return a copy of the newest state, for `put_back`."""
        device = {
            name: None if tensors is None else {key: tensor.detach().clone() for key, tensor in tensors.items()}
            for name, tensors in self._read().items()
        }
        return SavedState(device, self._scaling, self.settings, copy.deepcopy(self._numbers.groups()), self.steps)

    def put_back(self, saved: SavedState, steps: Optional[int] = None) -> None:
        """Make a state that `read` returned the newest, when that on the device is lost; `steps` replaces its count."""
        self.steps = saved.steps if steps is None else steps
        self._newer_on_device = True
        self._scaling = saved.scaling
        if saved.device["ipu_state"] is not None:
            self._device.set_state_dict(saved.device)

    def stand_in(self) -> Any:
        """Return an optimizer to leave with an executor in place of the device's, which belongs to one at a time."""
        return copy.copy(self._stand_in)

    def give_up(self) -> None:
        """Expect nothing newer from the device, which may no longer answer: the values read last are the newest."""
        # A state that detaching keeps for the next time has not been loaded by anybody.
        self._loaded, self._given_up = self.loaded, True
        self._device.host_state_is_dirty = False
        newest = self._device.state_dict()
        if newest.get("ipu_state") is not None:
            self._device.set_state_dict(newest)

    def state_dict(self, saved: SavedState) -> Dict[str, Any]:
        """Return the state dictionary that the user's optimizer would have given at that moment."""
        if self.conversion.passed_through:
            return {**saved.device, "state": {}, "param_groups": saved.groups}
        device_state = saved.device["ipu_state"]
        if device_state is None:
            # The device was never used: the state is the one that the optimizer shows.
            return {"state": copy.deepcopy(self._source.state_dict()["state"]), "param_groups": saved.groups}
        state = state_to_torch(
            device_state, self._names, saved.groups, self.conversion.kind, steps=saved.steps, loss_scaling=saved.scaling
        )
        return {"state": state, "param_groups": saved.groups}

    def detach(self) -> None:
        """Make the user's optimizer an ordinary one again, holding the newest state."""
        try:
            if self._let_go.alive:
                self.refresh_state()
        finally:
            self._let_go()

    def send_again(self, trainable: Collection[str]) -> None:
        """Send the state that the user's optimizer shows, to a program to be compiled that trains these parameters."""
        if self.conversion.passed_through:
            return
        values = self._read()["ipu_param"] or {}
        if not values and not self._source.__dict__["state"]:
            return  # neither has any yet
        everything = self._converted_state(None, strict=False)
        wanted = {name: tensor for name, tensor in everything.items() if _parameter_of(name) in trainable}
        self._loaded = True
        self._device.set_state_dict({"ipu_state": wanted, "ipu_param": {}})

    def complete(self, trainable: Collection[str]) -> None:
        """Send another program, which trains these parameters, the state of those that the last one had none of.

        A compiled program has state of the parameters alone that its loss depends on. The state of the last one is on
        the host.
        """
        if self.conversion.passed_through:
            return
        self.refresh_state()
        known = self._read()["ipu_state"]
        if known is None:
            return
        held, shown = {_parameter_of(name) for name in known}, self._source.__dict__["state"]
        pairs = zip(self._names, self._parameters)
        if any(name in trainable and name not in held and parameter in shown for name, parameter in pairs):
            self.send_again(trainable)

    def _send_state(self, strict: bool = True) -> None:
        current = self._read()
        converted = self._converted_state(current["ipu_state"], strict)
        self._loaded = True
        self._device.set_state_dict({"ipu_state": converted, "ipu_param": current["ipu_param"] or {}})

    def _read(self) -> Dict[str, Optional[Dict[str, torch.Tensor]]]:
        """Return the newest state in PopTorch's structure; None for both parts before the first use."""
        # The executor, whichever has the optimizer at the time, has put this method there: no other asks the device.
        current = self._copying(lambda: self._device.state_dict())
        return {name: current.get(name) for name in _OF_THE_DEVICE}

    def _rescale(self, scaling: Any) -> None:
        """Rescale velocities after a change of the loss scaling: PopTorch leaves the numbers alone."""
        factor, slots = float(scaling) / self._scaling, self.conversion.kind.slots
        scaled = tuple(slots[name] + "___" for name in self.conversion.kind.scaled)
        if factor == 1.0 or not scaled or getattr(self._device, "use_combined_accum", False):
            self._scaling = float(scaling)
            return
        current = self._read()
        state = current["ipu_state"]
        if state is not None:
            values = {name: each * factor if name.startswith(scaled) else each for name, each in state.items()}
            self._device.set_state_dict({**current, "ipu_state": values})
        self._scaling = float(scaling)

    def _converted_state(self, known: Optional[Mapping[str, torch.Tensor]], strict: bool) -> Dict[str, torch.Tensor]:
        numbers = {id(parameter): number for number, parameter in enumerate(self._parameters)}
        state = {
            numbers[id(key)]: entries if strict else self._of_the_device(entries)
            for key, entries in self._source.__dict__["state"].items()
            if id(key) in numbers
        }
        return state_from_torch(
            state,
            self._names,
            self._shapes,
            self._numbers.groups(),
            self.conversion.kind,
            variable=self.conversion.variable,
            known=known,
            loss_scaling=self._scaling,
        )


def check_parameters(optimizer: torch.optim.Optimizer, module: nn.Module) -> None:
    """Refuse an optimizer that does not hold exactly the trainable parameters of a module.

    Frozen parameters may be in it or not. A trainable one must: the device would update it all the same, with the
    optimizer's default values.
    """
    named = dict(module.named_parameters())
    known = {id(parameter) for parameter in named.values()}
    held = set()
    foreign: List[str] = []
    for index, group in enumerate(optimizer.param_groups):
        names = group.get("param_names", [None] * len(group["params"]))
        for position, (parameter, name) in enumerate(zip(group["params"], names)):
            held.add(id(parameter))
            if id(parameter) not in known:
                place = f"group {index}, parameter {position}"
                foreign.append(f"{name or place} of shape {tuple(parameter.shape)}")
    if foreign:
        raise OptimizerError(
            f"The optimizer holds parameters that are not the model's: {listed(foreign, _MOST_NAMES)}. Make the "
            "optimizer from model.parameters() of the model that is trained, after anything that copies or replaces "
            "its parameters."
        )
    missing = [name for name, parameter in named.items() if parameter.requires_grad and id(parameter) not in held]
    if missing:
        raise OptimizerError(
            f"Trainable parameters are in no group of the optimizer: {listed(missing, _MOST_NAMES)}. The device would "
            "train them with the optimizer's default values. Add them to the optimizer, or freeze them with "
            "parameter.requires_grad_(False)."
        )


def _parameter_of(name: str) -> str:
    """Return the parameter that a tensor of the device's state belongs to, by their names there."""
    return name.split("___", 1)[-1]


def _most_steps(state: Mapping[Any, Mapping[str, Any]]) -> int:
    counts = [int(entries["step"]) for entries in state.values() if entries.get("step") is not None]
    return max(counts, default=0)
