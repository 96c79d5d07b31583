"""Modes and attributes of modules, and the trained weights: a compiled step depends on them besides its graph."""

from __future__ import annotations

import contextlib
from typing import Any, Container, ContextManager, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

import torch
from torch import nn

from ignite_ipu.deferred.graph.leaves import weights_among
from ignite_ipu.deferred.graph.modes_then import ModesThen
from ignite_ipu.deferred.graph.modules_then import ModulesThen
from ignite_ipu.deferred.graph.operations import Operation
from ignite_ipu.deferred.graph.owners import CODES, ReplacedError, parameter_of
from ignite_ipu.deferred.graph.step_graph import Loss
from ignite_ipu.deferred.tensor.stored_values import bring_stored
from ignite_ipu.errors import CaptureError, listed
from ignite_ipu.program.guards.python_state import PythonState, is_training
from ignite_ipu.program.guards.values import AWAITED, is_left_behind
from ignite_ipu.program.module_state import NEVER
from ignite_ipu.program.module_tables import CHANGES
from ignite_ipu.program.tensors.raw import requires_grad, set_requires_grad
from ignite_ipu.program.user_code import current_line
from ignite_ipu.session.weights.tracker import Weights
from ignite_ipu.torch_names.modules import all_parameters
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass

_MOST_MOMENTS = 16


class Modes:
    """The modes of one model, or of a part of a `whole` one, exact at every call.

    Modules are checked every time, if `PythonState` has to. Parameters, in the order of `ModesThen.trained`, are
    checked if one of them was accessed since, and searched for if a module has others since.

    Attributes:
        holds_awaited: Whether the code may read tensors that stand for values which were still to come.
        since: The moment, by `CLOCK`, since which the model consists of its parts; 0 for those that it began with.
    """

    since = 0

    def __init__(self, model: nn.Module, weights: Weights, whole: Optional[nn.Module] = None) -> None:
        self._model, self._whole = model, whole or model
        self._weights = weights
        self._state: Optional[PythonState] = None
        # The counts of changes of all tables, and of held tensors, at the last look for other parameters.
        self._tables = self._changes = NEVER
        self.parameters: List[torch.Tensor] = list(all_parameters(model))
        self._trained: List[bool] = []
        self._looks = -1
        self._then: Optional[ModesThen] = None
        self._moments: List[ModesThen] = []  # beginning with the newest
        self._seen: Tuple[Any, ...] = ()
        self.holds_awaited = False
        CODES.add(self)

    def bring_awaited(self) -> None:
        """Have known values in the attributes of modules that stood for these at the last look."""
        self.holds_awaited = self._state is not None and bring_stored(self._state.attributes, self.reads)

    def reads(self, tensor: torch.Tensor) -> bool:
        """Return whether the model's code reads a tensor, an attribute or a variable, by the last look."""
        return self._state is not None and any(each is tensor for each in self._state.values.objects)

    def now(self) -> ModesThen:
        state, then = self._state, self._then
        found = None if state is None else state.now()
        if state is None or found is None:
            # A call finds out whether it computes with the weights of others.
            state = self._state = PythonState(self._model, but=parameter_of)
            found = state.training(), state.values()
            self._changes = self._tables = NEVER
        if self._tables != CHANGES.count:
            changes = self._weights.held.changes
            if self._changes != changes:
                refuse_replaced(self._weights, self._whole)
                self._changes = changes
                self.parameters = list(all_parameters(self._model))
                self._looks = -1
            self._tables = CHANGES.count
        trained = self._trained if self._looks == self._weights.detector.looks else self.trained()
        training, values = found
        seen = self._seen
        # Each is the same object if nothing in it has changed, and then so is the result.
        if then is None or training is not seen[0] or trained is not seen[1] or values is not seen[2]:
            self._seen = (training, trained, values)
            objects = state.values.objects
            if not AWAITED.keys().isdisjoint(map(type, objects)):
                self.holds_awaited |= any(type(each) in AWAITED and not is_left_behind(each) for each in objects)
            if then is None or then.parts != state.parts:
                self._weights.held.keep_parts()
            modules = ModulesThen(state, self._weights.held.parts) if then is None else then.modules
            now = ModesThen(self, training, trained, state.names, values, state.parts, modules)
            self._then = then if then == now else self._moment(now)
        assert self._then is not None
        return self._then

    def _moment(self, now: ModesThen) -> ModesThen:
        """Return an equal moment of before, or this one with its modules."""
        assert self._state is not None
        found = next((each for each in self._moments if each == now), None)
        if found is None:
            found = now._replace(modules=ModulesThen(self._state, self._weights.held.parts))
            self._moments = [found, *self._moments[: _MOST_MOMENTS - 1]]
        return found

    def with_parts_of_before(self) -> ContextManager[None]:
        """Return a context in which the model consists of its parts of before some were replaced, if they were."""
        return self._weights.held.put_back()

    @contextlib.contextmanager
    def at(self, then: ModesThen) -> Iterator[None]:
        """Have modules in training and evaluation mode, and their Python values, as they were, in the `with` block."""
        state, self._state = self._state, then.modules.state
        try:
            with then.modules.put_back(then.training):
                yield
        finally:
            self._state = state

    def lost(self, then: ModesThen) -> Optional[str]:
        """Return in words the changes since a moment that `at` cannot undo, or None."""
        with self.with_parts_of_before():
            if _differ(self.now(), then):
                with self.at(then):
                    again = self.now()
                if _differ(again, then):
                    return then._replace(training=again.training, trained=again.trained, calls=()).difference(again)
        return None

    def are(self, then: ModesThen) -> bool:
        """Return whether modules are in the modes of a moment, and the same parameters are trained.

        False also if tables of modules have changed since the last look at them: tensors may have been replaced.
        """
        state = self._state
        if state is None or self._tables != CHANGES.count or list(map(is_training, state.moded)) != then.training:
            return False
        return (self._trained if self._looks == self._weights.detector.looks else self.trained()) == then.trained

    def is_now(self, then: ModesThen) -> bool:
        """Return whether Python values are as at a moment, too."""
        return not _differ(self.now(), then)

    @contextlib.contextmanager
    def as_then(self, then: ModesThen) -> Iterator[None]:
        """Have modules in their modes, and parameters frozen, as they were, in the `with` block."""
        now = self.now()
        if then is now:
            yield
            return
        pairs = zip(self.parameters, now.trained, then.trained)
        changed = [
            (each, is_trained, was_trained) for each, is_trained, was_trained in pairs if is_trained != was_trained
        ]
        with self.at(then):
            self._set_trained((parameter, was_trained) for parameter, _, was_trained in changed)
            try:
                yield
            finally:
                self._set_trained((parameter, is_trained) for parameter, is_trained, _ in changed)

    def _set_trained(self, flags: Iterable[Tuple[torch.Tensor, bool]]) -> None:
        with DisableTorchFunctionSubclass():
            for parameter, flag in flags:
                set_requires_grad(parameter, flag)
        self._looks = -1

    def trained(self) -> List[bool]:
        """Return whether each parameter requires gradients at this moment."""
        if self._looks != self._weights.detector.looks:
            self._looks = self._weights.detector.looks
            with DisableTorchFunctionSubclass():
                self._trained = list(map(requires_grad, self.parameters))
        return self._trained

    def with_parts(self, calls: Sequence[ModesThen]) -> ModesThen:
        """Return the current modes, but those of calls for parameters and modules of parts that were called.

        A module that is in training mode in one of several calls counts as being so.
        """
        now = training_in_any(calls, self.now())
        trained: Dict[int, bool] = {}
        for then in calls:
            trained.update({id(each): flag for each, flag in zip(then.of.parameters, then.trained)})
        return now._replace(trained=[trained.get(id(each), flag) for each, flag in zip(self.parameters, now.trained)])

    def check_trained(self, loss: Loss, own: Optional[Container[int]] = None) -> None:
        """Refuse to go backward when others of its `own` parameters require gradients than when the model was called.

        PyTorch has recorded the ones, and computes gradients of the others.
        """
        trained = self._trained if self._looks == self._weights.detector.looks else self.trained()
        for operation in loss.operations:
            modes = operation.signature.modes
            if operation.model is None:
                self._check_weights(operation, loss, own)
            if modes is None or modes.trained is trained:
                continue
            parts = self.parameters if modes.of is self else modes.of.parameters
            with DisableTorchFunctionSubclass():
                now = trained if modes.of is self else list(map(requires_grad, parts))
            if modes.trained == now:
                continue
            changed = [each for each, *flags in zip(parts, modes.trained, now) if flags[0] != flags[1]]
            if own is not None and operation.model is not None:
                changed = [each for each in changed if id(each) in own and id(each) in operation.model.parameter_ids]
            if changed:
                raise _frozen_between("the model was called", operation, loss)

    def _check_weights(self, operation: Operation, loss: Loss, own: Optional[Container[int]]) -> None:
        for leaf in weights_among(operation.leaves):
            if own is None or id(leaf.tensor) in own:
                with DisableTorchFunctionSubclass():
                    now = requires_grad(leaf.tensor)
                if now != leaf.shape.requires_grad:
                    raise _frozen_between("they were used", operation, loss)


def training_in_any(calls: Sequence[ModesThen], modes: ModesThen) -> ModesThen:
    """Return modes in which the modules are in training mode that are so in any call; others as they are there."""
    training: Dict[int, bool] = {}
    for then in calls:
        for key, flag in then.training_by_module().items():
            training[key] = flag or training.get(key, False)
    moded = modes.modules.state.moded
    return modes._replace(training=[training.get(id(own), flag) for own, flag in zip(moded, modes.training)])


def _frozen_between(what: str, operation: Operation, loss: Loss) -> CaptureError:
    return CaptureError(
        f"Parameters were frozen or unfrozen after {what} at {operation.line} and before backward() at {loss.line}. "
        "Do that before the call, or after optimizer.step()."
    )


def _differ(now: ModesThen, then: ModesThen) -> bool:
    """Return whether Python values or modules differ."""
    return (now.names, now.values, now.parts) != (then.names, then.values, then.parts)


def is_earlier(modes: Modes, operation: Operation) -> bool:
    """Return whether an operation that has yet to be computed was made before parts of the model were replaced."""
    return operation.number <= modes.since and not operation.done


def refuse_earlier(modes: Modes, operations: Iterable[Operation]) -> None:
    """Refuse to go backward through operations that were made before parts of the model were replaced."""
    for operation in operations:
        if is_earlier(modes, operation):
            raise CaptureError(
                f"A loss is computed at {operation.line}, and parts of the model were replaced, added or removed after "
                f"that, before its gradients are used at {current_line()}: the calls of one update are one program. "
                "Change the model after optimizer.step()."
            )


def refuse_replaced(weights: Weights, model: nn.Module) -> None:
    """Refuse a model that has other weights than at first."""
    names = weights.held.replaced(model)
    if names:
        raise ReplacedError(
            f"At {current_line()}, {listed(names)} of the model was replaced, added or removed "
            "since the model was captured, but the device has the weights of that time. Write into weights and buffers "
            "in place (copy_() under torch.no_grad(), or load_state_dict), or change the model before it is prepared. "
            "accelerator.free_memory() ends the capture, and keeps weights and optimizer state."
        )
