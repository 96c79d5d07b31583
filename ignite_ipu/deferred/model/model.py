"""A user's model whose calls are captured: the object stays the user's, its class becomes one that records.

With gradients enabled a call records, if weights of it are trained. Any other call runs on the device with the newest
weights, and so does a recorded call in evaluation mode, until one goes backward.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, Union, cast

import torch
from torch import nn

from ignite_ipu.capabilities.gradients import GRADIENTS_ON_THE_HOST
from ignite_ipu.deferred.compiled.host_calls import called_on_host
from ignite_ipu.deferred.events import OBSERVERS
from ignite_ipu.deferred.graph.call_signatures import CallSignature
from ignite_ipu.deferred.graph.operations import Operation, Value, shown_input
from ignite_ipu.deferred.graph.owners import (
    OPTIMIZERS,
    OWNERS,
    WATCH,
    ReplacedError,
    held_by,
    held_parameters,
    held_tensors,
    is_held,
    own,
    parameter_of,
)
from ignite_ipu.deferred.graph.structure import flatten, leaves_in, unflatten
from ignite_ipu.deferred.model.buffers import note_made_on_host
from ignite_ipu.deferred.model.capturing_class import release_class
from ignite_ipu.deferred.model.loop import Loop, Setup
from ignite_ipu.deferred.model.recording import RecordedCalls
from ignite_ipu.deferred.tensor.composed import ComposedCode, ComposedError
from ignite_ipu.deferred.tensor.deferred_values import all_values, deferred_values, resolved
from ignite_ipu.deferred.tensor.outside import OutsideTensors
from ignite_ipu.deferred.tensor.reads import awaits_backward
from ignite_ipu.deferred.tensor.stored_values import bring_waiting
from ignite_ipu.deferred.tensor.without_graph import without_graph
from ignite_ipu.deferred.tensor.written_tensors import WAITING
from ignite_ipu.errors import CaptureError, IPUError
from ignite_ipu.program.forward.assigned_buffers import AssignedInPlace
from ignite_ipu.program.forward.left_behind import LeftPlaces, called_beside
from ignite_ipu.program.module_state import NEVER, RUN_BY_PYTHON
from ignite_ipu.program.module_tables import CHANGES
from ignite_ipu.program.tensors.raw import named_tensors, plain, requires_grad
from ignite_ipu.program.user_code import current_line
from ignite_ipu.session.session import IPUSession
from ignite_ipu.torch_names.modules import all_modules, all_parameters
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass


class CapturedModel:
    """Captured model: records its calls, or evaluates.

    Args:
        loop: The loop that it belongs to, as that of a model of which this one is a submodule; its own when None.

    Attributes:
        loop: The loop that trains it, alone or together with others.
        path: Where in the loop's module this one is.
        parameter_ids: The ids of its parameters when the loop began with it.
        tables: The count of changes of tables of tensors when the model was last found to have its own weights.
        composed: Whether its code is the loop's.
        outside: The tensors outside of the model that its code computes with.
        left: The places where its calls store tensors.
    """

    def __init__(self, model: nn.Module, setup: Setup, loop: Optional[Loop] = None) -> None:
        self.model = model
        self.path = ""
        self.loop: Loop
        self.tables = NEVER
        # By name, buffers that a call has written in which the model's code raised an error.
        self._failed: Dict[str, torch.Tensor] = {}
        self.left = LeftPlaces()
        self._calls = RecordedCalls(self, self._failed)
        of_self = functools.partial(_called_by_python, self), functools.partial(_awaits_update, self)
        self.composed = ComposedCode(model, *of_self, setup.config.update)
        self.outside = OutsideTensors(model, self.composed)
        self._tensors: Dict[str, torch.Tensor] = {}
        self.parameter_ids: Sequence[int] = ()
        (Loop(model, [model], setup) if loop is None else loop).adopt(self)

    def follow(self, loop: Loop) -> None:
        """Be a model of a loop from now on."""
        self.loop = loop
        (self.path,) = [name for name, module in loop.module.named_modules() if module is self.model]
        self.parameter_ids = list(map(id, all_parameters(self.model)))
        if any(top is self.model for top in loop.tops):
            self._tensors = named_tensors(self.model)
            own(self, {name: each for name, each in self._tensors.items() if parameter_of(each) is None})

    def release(self) -> None:
        """Be an ordinary model again."""
        release_class(self.model)
        if self.composed.is_composed:
            RUN_BY_PYTHON.update(removed=all_modules(self.model))
        # A value that the user still holds keeps this alive, but its tensors are not captured any more.
        self._tensors = {}

    @property
    def session(self) -> IPUSession:
        return self.loop.session

    @property
    def name(self) -> str:
        return type(self.model).__name__

    def owns(self, name: str, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is the model's parameter or buffer of this name."""
        return self._tensors.get(name) is tensor

    def has_own_weights(self) -> bool:
        """Return whether the model has the weights that it was captured with, and no others for one call."""
        tensors = named_tensors(self.model)
        found = tensors.keys() == self._tensors.keys() and all(self.owns(name, tensors[name]) for name in tensors)
        self.tables = CHANGES.count if found else NEVER
        return found

    def call(self, args: Tuple[Any, ...], kwargs: Dict[str, Any], begins: bool = True) -> Any:
        """Return the result of the model; `begins` allows the loop to begin again with other parts of it."""
        outside = self.outside
        records = self.model.training and torch.is_grad_enabled()
        answer = self._calls.record if records else self._evaluated
        try:
            if self.composed.is_composed or (outside.count != OWNERS.count and outside.are_captured()):
                self.loop.modes.now()
                result = ComposedError
            else:
                if WAITING or self.loop.modes.holds_awaited:
                    self.loop.modes.now()  # the tensors that the code reads are known then
                    bring_waiting(self.loop.modes)
                result = answer(args, kwargs)
        except ComposedError:
            result = ComposedError
        except ReplacedError:
            if not (begins and self.loop.begin_again()):
                raise
            return self.call(args, kwargs, begins=False)
        except IPUError:
            self._failed.clear()
            raise
        except Exception:
            if self._failed:
                self._write_failed(answer, args, kwargs)
            raise
        if result is ComposedError:
            return self._composed(args, kwargs)
        if OBSERVERS and not records:
            for observer in OBSERVERS:
                observer.evaluated(self.model, result)
        return result

    def _composed(self, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        """Return the result of the model's code, each function of which the loop records, or the host computes."""
        if self.composed.is_composed and not self.composed.is_apart:
            self.composed.follow()
        with AssignedInPlace():
            return type(self.model).__mro__[1].__call__(self.model, *args, **kwargs)

    def _write_failed(self, answer: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        """Write the buffers that PyTorch has written in a call when the model's code raises an error, by an `answer`.

        The values are those of a call on the host. It is made anew if it began with buffers that calls before it have
        yet to write, or with arguments that are not known.

        Raises:
            EarlyReadError: The host cannot compute these.
        """
        unknown, buffers = deferred_values((args, kwargs)), self.loop.buffers
        if unknown or not buffers.is_settled:
            self._failed.clear()
            args, kwargs = resolved((args, kwargs), "an argument")
            buffers.before_read()
            with contextlib.suppress(Exception):
                answer(args, kwargs)
        tensors = named_tensors(self.model)
        written = {name: (plain(tensors[name]), values) for name, values in self._failed.items()}
        self._failed.clear()
        self.session.weights.to_host()
        before = {name: tensor.clone() for name, (tensor, _) in written.items()}
        for tensor, values in written.values():
            tensor.copy_(values)
        structure = flatten((), [])
        signature = CallSignature(None, structure, False, structure, (), writes=list(written))
        note_made_on_host(buffers, Operation(signature, self, (), current_line()), before)

    def _evaluated(self, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        """Return the result of a call without gradients or in evaluation mode, recorded if weights may be trained."""
        grad, loop = torch.is_grad_enabled(), self.loop
        trains = grad and not self.is_frozen and is_held(self.model)
        if trains or (grad and _asks(self.loop, args, kwargs)):
            return self._calls.record(args, kwargs)
        if self.continues_a_step(args, kwargs):
            if grad or self.is_frozen:
                return self._calls.record(args, kwargs)
            # The weights are those of now, which a step changes that may be made before that of the values.
            args, kwargs = resolved((args, kwargs), "an argument")
        loop.setup.observer.called(self, recorded=False)
        loop.session.hooks.follower.check_evaluation()
        if loop.evaluations.waiting:
            loop.evaluations.before_evaluation(self.model)
        evaluated = functools.partial(loop.evaluation.run, outside=self.outside, left=self.left)
        if not grad:
            return evaluated(args, kwargs, self.model, failed=self._failed)
        show = functools.partial(self._shown, (args, kwargs))
        return evaluated(args, kwargs, self.model, show, grad, self._failed)

    def _shown(self, arguments: Any, output: Any) -> Any:
        """Return the output of an inference program, which requires gradients if arguments do."""
        with DisableTorchFunctionSubclass():
            sources = [tensor for tensor in leaves_in(arguments) if tensor.requires_grad]
        reason = (
            f"A backward pass reached the output of {self.name} in evaluation mode, of whose weights no optimizer "
            f"trains any. {GRADIENTS_ON_THE_HOST}"
        )
        return without_graph(output, reason, sources) if sources else output

    def continues_a_step(self, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> bool:
        """Return whether the model is called with a value that a step has yet to compute."""
        return any(map(awaits_backward, deferred_values((args, kwargs)))) or (
            torch.is_grad_enabled() and any(value.live for value in all_values((args, kwargs)))
        )

    def others_with_buffers(self) -> List[CapturedModel]:
        """Return models of other loops that have buffers of this one: each buffer is to be in one book."""
        with DisableTorchFunctionSubclass():
            owners = dict.fromkeys(map(owner_of, self.model.buffers()))
        return [owner for owner in owners if owner is not None and owner.loop is not self.loop]

    @property
    def is_frozen(self) -> bool:
        with DisableTorchFunctionSubclass():
            return not any(map(requires_grad, all_parameters(self.model)))

    def beside(self, weights: Sequence[torch.Tensor]) -> CapturedModel:
        """Return the captured model of weights that no model has, to be trained together with this one."""
        return capture_weights(weights, self.loop.setup) or self

    def called_with(self, call: Operation, tensors: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        """Return the results of a call, computed on the host as the model was at the call, without a trace there.

        Raises:
            CaptureError: Python values that the model's code reads have changed since the call.
        """
        signature = call.signature
        then = self.loop.updates.weights.then(call)
        with self._as_then(call), self.loop.session.weights.with_others(then) if then else contextlib.nullcontext():
            arguments = (signature.structure, tensors, self.loop.session.weights, self.name, signature.left)
            # With gradients enabled as at the call, by which its code may decide.
            differentiated = [leaf.shape.requires_grad for leaf in call.leaves] if signature.grad else None
            results = leaves_in(called_on_host(self.model, *arguments, differentiated).results)
            return list(map(torch.Tensor.detach, results))

    def evaluate(self, call: Operation) -> None:
        """Have an inference program compute a call in evaluation mode, through which gradients can still flow.

        Raises:
            CaptureError: Python values that the model's code reads, or the arguments, have changed since the call.
        """
        loop, signature = self.loop, call.signature
        found: List[torch.Tensor] = []
        leaves = [leaf.get() if isinstance(leaf, Value) else shown_input(leaf, call) for leaf in call.leaves]
        args, kwargs = unflatten(signature.structure, leaves)

        def show(output: Any) -> Any:
            found.extend(leaves_in(output))
            return output

        with self._as_then(call), torch.no_grad():
            loop.buffers.before_evaluation(self.name, call)
            given = args, kwargs, self.model, show, signature.grad
            called_beside(signature.left, functools.partial(loop.evaluation.run, *given, left=self.left))
        if [tuple(each.shape) for each in found] != [shape.size for shape in signature.shapes]:
            found = self.called_with(call, leaves)  # with the tensors that it stores elsewhere
        call.settle(found, keep=True)

    @contextlib.contextmanager
    def _as_then(self, call: Operation) -> Iterator[None]:
        """Have modules in the modes that they were in at a call, in the `with` block."""
        modes = call.signature.modes
        if modes is None:
            yield
            return
        lost = modes.of.lost(modes)
        if lost is not None:
            raise CaptureError(
                f"A value is read at {current_line()} of the call of {self.name} at {call.line}, whose update "
                f"has not run. The host cannot compute it any more: {lost}. Read it before that, or after "
                "optimizer.step()."
            )
        with modes.put_back():
            yield


def _asks(loop: Loop, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> bool:
    """Return whether gradients of arguments may be asked for, which come to the host."""
    if not (loop.updates.on_host or loop.updates.may_leave):
        return False
    with DisableTorchFunctionSubclass():
        return any(tensor.requires_grad for tensor in leaves_in((args, kwargs)))


def _awaits_update(model: CapturedModel) -> bool:
    return model.loop.updates.weights.awaits(model)


def _called_by_python(model: CapturedModel) -> List[nn.Module]:
    """Return the modules that Python calls if a model is composed: all but those of captured parts."""
    others = [each.model for each in model.loop.models if each.model is not model.model]
    parts = [all_modules(each) for each in others if each not in RUN_BY_PYTHON]
    inner = {id(module) for part in parts for module in part}
    return [each for each in all_modules(model.model) if id(each) not in inner]


class LooseParameters(nn.ParameterList):
    """The module of parameters that are no module's, as the temperatures and uncertainties that a loss weighs with."""


def capture_weights(weights: Sequence[torch.Tensor], setup: Setup) -> Optional[CapturedModel]:
    """Capture the models of weights, and return that of those which are no module's; None if there are none.

    Raises:
        CaptureError: No optimizer holds some of the weights.
    """
    for weight in weights:
        setup.observer.uses(weight)
    own = {id(weight) for weight in weights}
    if own - held_parameters():
        raise CaptureError(
            f"The loss that goes backward at {current_line()} is computed from parameters that no optimizer holds "
            "and no captured model has. Prepare their model, or call requires_grad_(False) on them."
        )
    optimizers = [each for each in list(OPTIMIZERS) if not own.isdisjoint(held_by(each))]
    held = map(held_tensors, optimizers)
    loose = {id(each): each for each in itertools.chain(weights, *held) if parameter_of(each) is None}
    if not loose:
        return None
    module = LooseParameters(list(loose.values()))
    model = CapturedModel(module, setup, Loop(module, [module], setup, {}))
    setup.observer.captured(model)
    for optimizer in optimizers:
        optimizer.__dict__[WATCH].keep(model)
    return model


def owner_of(tensor: torch.Tensor) -> Optional[CapturedModel]:
    """Return the captured model that has a tensor as its parameter or buffer, None for any other tensor."""
    found = parameter_of(tensor)
    return None if found is None else cast(CapturedModel, found[0])


def loops_of(tensors: Iterable[torch.Tensor]) -> List[Loop]:
    """Return the captured loops that tensors are weights of, in the order of the tensors."""
    return list(dict.fromkeys(owner.loop for owner in map(owner_of, tensors) if owner is not None))


def first_owner(
    parameters: Union[torch.Tensor, Iterable[torch.Tensor]],
) -> Tuple[Optional[CapturedModel], Iterable[torch.Tensor]]:
    """Return the captured model that has the first of parameters, if any, and all of them.

    An iterator, as `model.parameters()` is one, is not gone through before all are needed.
    """
    first, every = itertools.tee([parameters] if isinstance(parameters, torch.Tensor) else parameters)
    with DisableTorchFunctionSubclass():
        found = next(first, None)
        return None if found is None else owner_of(found), every
