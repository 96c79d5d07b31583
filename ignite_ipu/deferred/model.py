"""A user's model whose calls are captured: the object stays the user's, its class becomes one that records.

In training mode a call records; with gradients off, or in evaluation mode, it runs on the device with the newest
weights.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any, Callable, Dict, Hashable, List, Optional, Tuple

import torch
from torch import nn

from ignite_ipu.deferred.device_gradients import DeviceGradients
from ignite_ipu.deferred.errors import CaptureError, EarlyReadError, Line, current_line, shown
from ignite_ipu.deferred.evaluation import CapturedEvaluation
from ignite_ipu.deferred.graph import Input, Operation, Shape, Value
from ignite_ipu.deferred.recipes import Loss, ancestors
from ignite_ipu.deferred.settings import CaptureSettings
from ignite_ipu.deferred.step import native, natively
from ignite_ipu.deferred.structure import Structure, put_together, take_apart, take_call_apart
from ignite_ipu.deferred.training import CapturedTraining
from ignite_ipu.session import IPUSession

__all__ = ["CapturedModel", "capture_model", "captured", "mark_loss", "parameter_of", "run_for_read"]

_CAPTURE = "_ignite_ipu_capture"
_PARAMETERS: Dict[int, Tuple[weakref.ref[CapturedModel], str]] = {}


class CapturedModel:
    """What captures the calls of one model and runs its updates.

    Args:
        model: The user's model.
        settings: How steps are compiled.
        postponed: Called when a value is read between backward and `optimizer.step()`: returns why the update cannot
            run yet, None if it can.
        clip_remedy: What the loop does to clip gradients, for whoever uses `parameter.grad`; when None, `.grad` stays
            as it is.

    Attributes:
        session: The model's session, with the weights and the programs.
        training, evaluation: What runs updates and evaluations.
        pending: Losses that went backward since the last update.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: CaptureSettings,
        postponed: Callable[[], Optional[str]] = lambda: None,
        clip_remedy: Optional[str] = None,
    ) -> None:
        self.session = IPUSession.of(model)
        self.session.refuse_second_trainer()
        self._gradients = DeviceGradients(model, clip_remedy)
        # A compiler that looks at gradients shall find none.
        self.training = CapturedTraining(self.session, settings, self._gradients.remove)
        self.evaluation = CapturedEvaluation(self.session, settings, self._gradients.remove)
        self.pending: List[Loss] = []
        self.postponed = postponed
        self._early: Optional[Line] = None
        self._templates: Dict[Hashable, Tuple[Structure, List[Shape]]] = {}
        self._tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        reference = weakref.ref(self)
        for name, tensor in self._tensors.items():
            _PARAMETERS[id(tensor)] = (reference, name)
        weakref.finalize(self, _forget, [id(tensor) for tensor in self._tensors.values()], reference).atexit = False

    def owns(self, name: str, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor is the model's parameter or buffer of this name."""
        return self._tensors.get(name) is tensor

    # -- calls of the model ---------------------------------------------------------------------------------------

    def call(self, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        """Answer a call of the model."""
        if torch.is_grad_enabled() and self.session.model.training:
            return self._record(args, kwargs)
        try:
            return self.evaluation.run(args, kwargs)
        finally:
            if self.pending:
                self._gradients.place()

    def _record(self, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        from ignite_ipu.deferred.tensor import as_leaf, deferred_results

        line = current_line()
        found: List[Any] = []
        structure = take_call_apart(args, kwargs, found)
        with torch._C.DisableTorchFunctionSubclass():
            leaves = [as_leaf(leaf, line) for leaf in found]
            key = (structure.key, tuple([leaf.shape.key for leaf in leaves]))
            template = self._templates.get(key)
            if template is None:
                template = self._templates[key] = self._shapes(structure, leaves)
            operation = Operation(None, self, structure, leaves, True, line)
            return deferred_results(operation, *template)

    def _shapes(self, structure: Structure, leaves: List[Any]) -> Tuple[Structure, List[Shape]]:
        """Find out what the model returns by calling it once on the host, without a trace in weights or randomness."""
        model = self.session.model
        values = [
            torch.zeros(leaf.shape.size, dtype=leaf.shape.dtype) if isinstance(leaf, Value) else leaf.tensor
            for leaf in leaves
        ]
        args, kwargs = put_together(structure, values)
        buffers = {name: torch.Tensor.detach(buffer).clone() for name, buffer in model.named_buffers()}
        with natively(), torch.random.fork_rng(devices=[]), torch.no_grad():
            output = torch.func.functional_call(model, buffers, args, kwargs)
        tensors: List[torch.Tensor] = []
        result = take_apart(output, tensors)
        trains = any(parameter.requires_grad for parameter in model.parameters())
        return result, [Shape.of(tensor, trains and tensor.is_floating_point()) for tensor in tensors]

    # -- updates --------------------------------------------------------------------------------------------------

    def backward(self, loss: Loss) -> None:
        """Take a loss that went backward."""
        if self._early is not None:
            raise CaptureError(
                f"The value read at {shown(self._early)} made the update run before optimizer.step(), and now another "
                f"loss went backward at {shown(loss.line)} without that step: the update was made from one micro-batch "
                "where several were meant. When gradients accumulate, keep loss.detach() and read it after "
                "optimizer.step()."
            )
        self._gradients.place()
        self.pending.append(loss)

    def step(self) -> None:
        """Make the weight update that `optimizer.step()` asks for.

        Raises:
            CaptureError: The step cannot run on the device.
            OptimizerError, LossError: The optimizer or the loss cannot.
        """
        if self._early is not None:
            link = self.session.link
            if link is not None and link.changes():
                raise CaptureError(
                    f"The value read at {shown(self._early)} made the update run before optimizer.step(), and the "
                    "optimizer's hyper-parameters were changed in between. Read the value after optimizer.step()."
                )
            self._early = None
            self.training.finish_update()
            return
        if self.pending:
            self.training.finish_update()
            self._run()

    def zero_grad(self) -> None:
        """Drop what went backward since the last update, as clearing gradients does.

        Raises:
            CaptureError: The update has run already, for a value that was read.
        """
        if self._early is not None:
            raise CaptureError(
                f"The value read at {shown(self._early)} made the update run before optimizer.step(), and "
                f"now zero_grad() at {shown(current_line())} asks to drop its gradients. Read values after "
                "optimizer.step()."
            )
        for loss in self.pending:
            _give_up(loss, f"its gradients were dropped by zero_grad() at {shown(current_line())}")
        self.pending.clear()

    def run_early(self, value: Value, what: str) -> None:
        """Run the update before `optimizer.step()`, for a value that somebody reads.

        Raises:
            EarlyReadError: The value's loss has not gone backward, or the update is not complete.
        """
        line = current_line()
        own = {operation for operation in ancestors(value) if operation.model is self}
        if not own <= {operation for loss in self.pending for operation in loss.operations}:
            raise EarlyReadError(
                f"{what} at {shown(line)} asks for a value of the training step before the step has run: its loss has "
                "not gone backward. Move the line after backward (or optimizer.step()); to keep a sum, add "
                "loss.detach() and read the sum later. For a forward pass without training, call model.eval() or use "
                "torch.no_grad()."
            )
        reason = self.postponed()
        if reason is not None:
            raise EarlyReadError(
                f"{what} at {shown(line)} asks for a value that comes with the weight update, and {reason}. Keep "
                "loss.detach() and read it after the update."
            )
        self._run()
        self._gradients.place()
        self._early = line

    def close(self) -> None:
        """End the capture: the model and its optimizer are ordinary ones again, with the newest weights and state."""
        from ignite_ipu.deferred.optimizer import release_optimizer

        for loss in self.pending:
            _give_up(loss, "its model was given back")
        self.pending.clear()
        self._gradients.remove()
        self.session.close()
        if self.training.optimizer is not None:
            release_optimizer(self.training.optimizer)
        _release_class(self.session.model)

    def _run(self) -> None:
        from ignite_ipu.deferred.optimizer import find_optimizers

        losses, self.pending = self.pending, []
        if self.training.optimizer is None:
            find_optimizers()
        if self.training.optimizer is None:
            raise CaptureError("The model's optimizer is not known: prepare it together with the model.")
        self.session.weights.notice_edits()
        try:
            self.training.run(losses)
        except BaseException as error:
            for loss in losses:
                _give_up(loss, f"the step failed: {type(error).__name__}: {error}")
            raise


def capture_model(
    model: nn.Module,
    settings: CaptureSettings,
    postponed: Callable[[], Optional[str]] = lambda: None,
    clip_remedy: Optional[str] = None,
) -> CapturedModel:
    """Capture a model's calls from now on, and return what does; the same again for a captured model.

    Args:
        model, settings, postponed, clip_remedy: As for `CapturedModel`.

    Raises:
        SessionError: The model is trained by another engine, or some of it is not on the CPU.
    """
    existing = captured(model)
    if existing is not None:
        return existing
    capture = CapturedModel(model, settings, postponed, clip_remedy)
    model.__dict__[_CAPTURE] = capture
    own_class: Any = type(model)
    model.__class__ = _capturing_class(own_class)
    return capture


def captured(model: Any) -> Optional[CapturedModel]:
    """Return what captures a model, None for an ordinary one."""
    found: Optional[CapturedModel] = getattr(model, "__dict__", {}).get(_CAPTURE)
    return found


def parameter_of(tensor: torch.Tensor) -> Optional[Tuple[CapturedModel, str]]:
    """Return which captured model has a tensor as its parameter or buffer, and under which name."""
    found = _PARAMETERS.get(id(tensor))
    if found is None:
        return None
    model, name = found[0](), found[1]
    return (model, name) if model is not None and model.owns(name, tensor) else None


def mark_loss(value: Value) -> None:
    """Let a value go backward.

    Raises:
        CaptureError: It is no scalar, or was computed from no captured model or from several, or from dropped values.
    """
    line = current_line()
    if value.known:
        raise CaptureError(
            f"backward() at {shown(line)}: the step of this loss has run already, and with it its backward pass."
        )
    operations = ancestors(value)
    _check_not_given_up(operations, "backward()", line)
    if value.shape.size and max(value.shape.size) != 1:
        raise CaptureError(
            f"backward() at {shown(line)} was called on a tensor of shape {value.shape.size}; a loss is a scalar. "
            "Reduce it with mean() or sum()."
        )
    if not value.shape.requires_grad:
        raise CaptureError(
            f"backward() at {shown(line)} was called on a value that does not depend on trainable weights (it was "
            "detached, or computed without gradients), so nothing would be trained."
        )
    models = _models_of(operations)
    if len(models) != 1:
        names = " and ".join(sorted(type(model.session.model).__name__ for model in models))
        raise CaptureError(
            f"The loss at {shown(line)} was computed from several captured models ({names}). One device step trains "
            "one model: this pattern (a GAN's generator trained through its discriminator, a shared encoder) is not "
            "supported across models. Put the models into one nn.Module with one optimizer; or, where one is not "
            "trained by this loss, call it in eval mode under torch.no_grad() (a teacher, a frozen generator)."
        )
    models[0].backward(Loss(value, operations, line))


def run_for_read(value: Value, what: str) -> None:
    """Run what a value that somebody reads depends on.

    Raises:
        EarlyReadError: That is not possible yet, or never.
    """
    operations = ancestors(value)
    _check_not_given_up(operations, what, current_line())
    for model in _models_of(operations):
        model.run_early(value, what)


def _models_of(operations: Tuple[Operation, ...]) -> List[CapturedModel]:
    found: Dict[int, CapturedModel] = {}
    for operation in operations:
        for model in (
            operation.model,
            *[leaf.model for leaf in operation.leaves if isinstance(leaf, Input)],
        ):
            if model is not None:
                found[id(model)] = model
    return list(found.values())


def _check_not_given_up(operations: Tuple[Operation, ...], what: str, line: Line) -> None:
    for operation in operations:
        if operation.problem is not None:
            raise EarlyReadError(
                f"{what} at {shown(line)} asks for a value that will never exist: {operation.problem}."
            )


def _give_up(loss: Loss, problem: str) -> None:
    for operation in loss.operations:
        if not operation.done:
            operation.problem = problem


def _forget(keys: List[int], reference: Any) -> None:
    for key in keys:
        if key in _PARAMETERS and _PARAMETERS[key][0] is reference:
            del _PARAMETERS[key]


def _release_class(model: nn.Module) -> None:
    if _CAPTURE in model.__dict__:
        model.__class__ = type(model).__mro__[1]
        del model.__dict__[_CAPTURE]


@functools.lru_cache(maxsize=None)
def _capturing_class(base: Any) -> Any:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if native():
            return base.__call__(self, *args, **kwargs)
        return self.__dict__[_CAPTURE].call(args, kwargs)

    def train(self: Any, mode: bool = True) -> Any:
        self.__dict__[_CAPTURE].training.modes_may_have_changed()
        return base.train(self, mode)

    def zero_grad(self: Any, set_to_none: bool = True) -> None:
        self.__dict__[_CAPTURE].zero_grad()

    def reduce_ex(self: Any, protocol: Any) -> Any:
        # Copies and files are of the original class, and capture nothing.
        getstate = getattr(base, "__getstate__", None)
        state = getstate(self) if getstate is not None else self.__dict__
        if isinstance(state, dict):
            state = {key: value for key, value in state.items() if key != _CAPTURE}
        return object.__new__, (base,), state

    members = {
        "__call__": call,
        "__doc__": base.__doc__,
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__reduce_ex__": reduce_ex,
        "train": train,
        "zero_grad": zero_grad,
    }
    return type(base.__name__, (base,), members)
