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
from typing import Any, Callable, Collection, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import nn

from ignite_ipu.errors import OptimizerError, listed
from ignite_ipu.optimizers.changes import Change, HyperParameters, Settings
from ignite_ipu.optimizers.conversion import Conversion
from ignite_ipu.optimizers.device_state import DeviceState, SavedState, parameter_of
from ignite_ipu.optimizers.linked_optimizer import link_optimizer
from ignite_ipu.optimizers.shown_state import ShownState
from ignite_ipu.poptorch_types import Executor
from ignite_ipu.torch_names.modules import all_named_parameters
from ignite_ipu.torch_names.optimizers import STEP_COUNT, STEPPED

_MOST_NAMES = 8
_State = Dict[str, Any]


class OptimizerLink:
    """Keeps a user's optimizer and the device's in step.

    PopTorch ties the device's optimizer to its executor, and so to the model and the IPUs. The user's optimizer refers
    to its link weakly, so a reference to it keeps none of these alive. It is an ordinary optimizer again when the link
    is dropped.

    Args:
        names: Name on the device -> parameter, for every parameter of the compiled module.
        copying: Makes the copies from the device, and retries the ones that fail.
        check_shown: Called before the state is shown or loaded, to refuse that.

    Attributes:
        steps: Weight updates made.
    """

    def __init__(
        self,
        conversion: Conversion,
        names: Mapping[str, torch.Tensor],
        copying: Callable[[Callable[[], _State]], _State] = lambda action: action(),
        check_shown: Callable[[], None] = lambda: None,
    ) -> None:
        self.conversion, self._check_shown = conversion, check_shown
        source = conversion.source
        self._shown = shown = ShownState(source, list(conversion.kind.slots))
        by_parameter = {id(parameter): name for name, parameter in names.items()}
        unnamed = [position for position, each in enumerate(shown.parameters) if id(each) not in by_parameter]
        if unnamed:
            raise OptimizerError(f"Parameters {unnamed} of the optimizer are not parameters of the compiled module.")
        own_names = [by_parameter[id(each)] for each in shown.parameters]
        shapes = [tuple(each.shape) for each in shown.parameters]
        self._numbers = HyperParameters(conversion)
        types = [each.dtype for each in shown.parameters]
        self._device = DeviceState(conversion, own_names, shapes, types, copying, float(self.settings.loss_scaling))
        self.steps = shown.steps
        # Checks come first: an optimizer whose link fails is unchanged.
        shows = not conversion.passed_through
        if shows and shown.state:
            self._send_state()
            shown.expect_edits()
        self._let_go = link_optimizer(source, self, shows)

    def changes(self) -> Tuple[Change, ...]:
        """Return the differences from the last values sent to the device; parameters are compared by identity."""
        return self._numbers.changes()

    @property
    def is_current(self) -> bool:
        """True if `push` has nothing to send."""
        numbers = self._numbers
        return self._shown.seen is None and numbers.same and self._device.scaling == numbers.told.loss_scaling

    def expect_changes(self, names: Iterable[str]) -> None:
        """Make hyper-parameters variable that a schedule changes, before the update is compiled with them.

        Raises:
            OptimizerError: One of them cannot change on an IPU.
        """
        self.conversion = self.conversion.with_variable(frozenset(self.conversion.kind.numbers).intersection(names))
        self._device.renew_stand_in()

    def push(self, executor: Optional[Executor] = None) -> Tuple[Change, ...]:
        """Send the changes to the device, if there are any; returns them.

        Before the model is compiled everything may change. After that a constant may not: `ConstantAttributeError` is
        raised and nothing sent. There is no executor before a model is wrapped, when PopTorch reads the optimizer.
        """
        if self._shown.seen is not None:
            self._send_edits()
        changes = self._numbers.changes()
        if changes:
            constants: Collection[str] = self.conversion.kind.settled
            if executor is not None and executor.isCompiled():
                constants = {change.attribute for change in changes} - self.conversion.variable
            self._send(changes, constants, executor)
        elif self._device.scaling != self._numbers.told.loss_scaling:
            self._device.rescale(self._numbers.told.loss_scaling)
        return changes

    def _send(self, changes: Sequence[Change], constants: Collection[str], executor: Optional[Executor]) -> None:
        numbers, device = self._numbers, self.conversion.optimizer
        numbers.refuse(changes, constants)
        # torch leaves the momentum's buffers alone while momentum is zero, and the device does not.
        changed = [each for each in changes if each.attribute == "momentum" and bool(each.old) != bool(each.new)]
        if changed:
            self.refresh_state()
        numbers.apply(changes)
        if executor is not None:
            try:
                executor.setOptimizer(device)
            except BaseException:
                # PopTorch keeps a refused value, and cannot read the state until it accepts another one.
                numbers.restore(changes)
                with contextlib.suppress(Exception):
                    executor.setOptimizer(device)
                raise
        numbers.note_told()
        self._device.rescale(self.settings.loss_scaling)
        if any(change.new for change in changed) and not self.conversion.passed_through:
            self._send_state(strict=False)

    def stepped(self, updates: int) -> None:
        """Count `updates` weight updates of the device, for reads of the state and schedules by steps."""
        self._shown.is_old = True
        self._device.was_sent = self._device.given_up = False
        self.steps += updates
        source = vars(self.conversion.source)
        source[STEPPED] = True
        if STEP_COUNT in source:
            source[STEP_COUNT] += updates
        if self._shown.handed_out and self._shown.check_held():
            self.refresh_state()
            self._shown.expect_edits()

    def refresh_state(self) -> None:
        """Bring the state that the user's optimizer shows up to date with the device's."""
        newer = self._device.newest(self._numbers, self.steps) if self._shown.is_old else None
        if newer is not None:
            self._shown.put(newer)

    def show_state(self, hands_out: bool = True) -> Any:
        """Return the state, as new as the device's; values written into it reach the device with the next update.

        If it is not handed out to code, it is that of each parameter, to be read at once: its tensors may share memory
        with the device's.
        """
        self._check_shown()
        if hands_out:
            self.refresh_state()
            return self._shown.show()
        newer = self._device.newest(self._numbers, self.steps) if self._shown.is_old else None
        return self._shown.followed_by(newer or {})

    def replace_state(self, state: Any) -> None:
        self._check_shown()
        self.refresh_state()  # to be found without the device, if a fault comes before it is sent
        self._shown.replace(state)

    def load_state(self, load: Callable[[Dict[str, Any]], None], state_dict: Dict[str, Any]) -> None:
        """Load a torch state dict into the user's optimizer by `load`, and send it to the device."""
        self._check_shown()
        if "ipu_state" in state_dict:
            raise OptimizerError(
                "This state dict was saved by an optimizer of poptorch.optim, not by torch's. Load it into a "
                f"poptorch.optim.{self.conversion.kind.name}."
            )
        was_old, self._shown.is_old = self._shown.is_old, False
        try:
            load(state_dict)
        except BaseException:
            self._shown.is_old = was_old
            raise
        self._shown.note_loaded()
        self.steps = self._shown.steps
        self._send_state()

    @property
    def settings(self) -> Settings:
        """The hyper-parameters that the device was told last."""
        return self._numbers.told

    def has_unsent(self) -> bool:
        """Return whether code has loaded or written state that the device has not trained with yet."""
        if self._shown.seen is not None:
            self._send_edits()
        return self._device.loaded

    def tell(self, executor: Executor, settings: Settings) -> None:
        """Send the device hyper-parameters of an earlier moment, or the current ones again."""
        self._numbers.write(settings)
        executor.setOptimizer(self.conversion.optimizer)
        self._device.rescale(settings.loss_scaling)

    def read(self) -> SavedState:
        """Return a copy of the newest state, for `put_back`."""
        if self._shown.seen is not None:
            self._send_edits()
        device, groups = self._device.copied(), self._numbers.groups()
        return SavedState(device, self._device.scaling, self.settings, groups, self.steps, self._device.behind)

    def put_back(self, saved: SavedState, steps: Optional[int] = None) -> None:
        """Make a state that `read` returned the newest, when that on the device is lost; `steps` replaces its count."""
        self.steps = saved.steps if steps is None else steps
        self._shown.is_old = True
        self._device.put_back(saved)

    def stand_in(self) -> Any:
        """Return an optimizer to leave with an executor in place of the device's, which belongs to one at a time."""
        return self._device.stand_in()

    def give_up(self) -> None:
        """Expect nothing newer from the device, which may no longer answer: the values read last are the newest."""
        self._device.give_up()

    def state_dict(self, saved: SavedState) -> Dict[str, Any]:
        """Return the state dictionary that the user's optimizer would have given at that moment."""
        if self.conversion.passed_through:
            return {**saved.device, "state": {}, "param_groups": saved.groups}
        device_state = saved.device["ipu_state"]
        if device_state is None:
            # The device was never used: the state is the one that the optimizer shows.
            return {"state": copy.deepcopy(self.conversion.source.state_dict()["state"]), "param_groups": saved.groups}
        state = self._device.in_torch(device_state, saved.groups, saved.steps, saved.behind, saved.scaling)
        # Parameters that are frozen by now have the state of the last program that trained them.
        frozen = {number: entries for number, entries in self._shown.by_number(True).items() if number not in state}
        return {"state": {**copy.deepcopy(frozen), **state}, "param_groups": saved.groups}

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
        values = self._device.parts()["ipu_param"] or {}
        if values or self._shown.state:  # else neither has any yet
            self._send_state(strict=False, only=trainable)

    def complete(self, trainable: Collection[str]) -> None:
        """Send another program, which trains these parameters, the state of those that the last one had none of.

        A compiled program has state of the parameters alone that its loss depends on. The state of the last one is on
        the host.
        """
        if self.conversion.passed_through:
            return
        self.refresh_state()
        self._device.compare_counts(self._shown.by_number(True), self.steps)
        known = self._device.parts()["ipu_state"]
        if known is None:
            return
        held, shown = set(map(parameter_of, known)), self._shown.state
        pairs = zip(self._device.names, self._shown.parameters)
        if any(name in trainable and name not in held and parameter in shown for name, parameter in pairs):
            self.send_again(trainable)

    def _send_edits(self) -> None:
        """Send the device the values that code has written into the state which the user's optimizer shows."""
        if self._shown.take_edits():
            self.steps = self._shown.steps
            self._send_state(strict=False)

    def _send_state(self, strict: bool = True, only: Optional[Collection[str]] = None) -> None:
        self._device.compare_counts(self._shown.by_number(True), self.steps)
        state = self._shown.by_number(every=strict)
        self._device.send(state, self._numbers.groups(), self.conversion.variable, only)


def check_parameters(optimizer: torch.optim.Optimizer, module: nn.Module) -> None:
    """Refuse an optimizer that does not hold exactly the trainable parameters of a module.

    Frozen parameters may be in it or not. A trainable one must: the device would update it all the same, with the
    optimizer's default values.
    """
    named = dict(all_named_parameters(module))
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
