"""Training loops written out: models and optimizers are captured as the script calls them.

Nothing that a script trains or evaluates runs on the host. A call of a module with weights records a step or runs an
inference program, and an update that no captured step makes is refused. (`update_bn` has the one exception.)
"""

from __future__ import annotations

import functools
import os
import sys
import weakref
from typing import Any, Callable, List, Optional

import torch
import torch.utils.data
from torch import nn

from ignite_ipu.deferred import CapturedModel, capture_model, capture_optimizer, captured
from ignite_ipu.deferred.compiled.evaluation import CapturedEvaluation
from ignite_ipu.deferred.compiled.places import Places
from ignite_ipu.deferred.events import CaptureObserver
from ignite_ipu.deferred.graph.owners import held_by, held_parameters, held_tensors, is_held, release_optimizer
from ignite_ipu.deferred.model.capturing import consists_of_captured, setup_of
from ignite_ipu.deferred.model.capturing_class import refuse_transforms
from ignite_ipu.deferred.model.loop import is_untrained
from ignite_ipu.deferred.model.model import owner_of
from ignite_ipu.deferred.model.optimizer import is_differentiated_on_host
from ignite_ipu.deferred.prepare import host_step_reason
from ignite_ipu.deferred.settings import leaving_device, refuse_for_capture
from ignite_ipu.deferred.tensor.deferred_values import deferred_values
from ignite_ipu.errors import logger
from ignite_ipu.program.config import IPUConfig
from ignite_ipu.program.forward.eager import EAGER
from ignite_ipu.program.module_state import RUN_BY_PYTHON
from ignite_ipu.program.tensors.raw import named_tensors
from ignite_ipu.program.torch_compiled import leave_out_compiler
from ignite_ipu.program.user_code import OURS, Owner, current_line
from ignite_ipu.program.user_code import owner_of as owner_of_file
from ignite_ipu.running.patches import Substitutes
from ignite_ipu.running.substitutes.existing import Existing
from ignite_ipu.running.substitutes.gradients import EngineWeights, substitute_gradients
from ignite_ipu.running.substitutes.parallel import within
from ignite_ipu.session.session import IPUSession, known_session
from ignite_ipu.session.weights.model_states import LiveState, live_state
from ignite_ipu.session.weights.tracker import Weights
from ignite_ipu.torch_names.modules import DROPOUT, all_parameters, has_parameters

_OURS = ("ignite_ipu.", "poptorch.")
# Substitutes, through which the calls of a script pass.
_PASSING_ON = os.path.join(OURS, "running") + os.sep


def substitute_loops(
    substitutes: Substitutes, trained: EngineWeights, config: IPUConfig, accelerates: bool
) -> CapturedLoops:
    """Capture the models and optimizers that the script uses, itself or by accelerate, until all is undone."""
    loops = CapturedLoops(substitutes, config)
    substitutes.on_undo(loops.release)
    substitutes.set(nn.Module, "__call__", loops.module_call(nn.Module.__call__))
    substitutes.calls(nn.Module, "named_parameters", loops.named_parameters)
    substitutes.calls(nn.Module, "state_dict", _state_dict)
    substitutes.calls(torch.optim.Optimizer, "__init__", loops.optimizer)
    substitute_gradients(substitutes, trained)
    if accelerates:
        _substitute_accelerator(substitutes, loops, config)
    return loops


def _substitute_accelerator(substitutes: Substitutes, observer: CaptureObserver, config: IPUConfig) -> None:
    """Let `accelerate.Accelerator` be an `IPUAccelerator` while the script runs."""
    import accelerate

    from ignite_ipu.deferred.accelerator import IPUAccelerator

    class Substitute(IPUAccelerator):
        _observer = observer

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            substitutes.maps(sys._getframe(1), "Accelerator()", "IPUAccelerator()", of_libraries=True)
            substitutes.use_settings()
            super().__init__(*args, config=config, **kwargs)

    Substitute.__name__, Substitute.__qualname__ = IPUAccelerator.__name__, IPUAccelerator.__qualname__
    Substitute.__module__ = IPUAccelerator.__module__
    substitutes.set_everywhere("accelerate", accelerate.Accelerator, Substitute)


def _state_dict(frame: Any, original: Callable[..., Any], module: Any, *args: Any, **kwargs: Any) -> Any:
    """Return a state that shows the newest weights also where a script takes it before it trains the model."""
    state = original(module, *args, **kwargs)
    if args or kwargs.get("destination") is not None or isinstance(state, LiveState):
        return state
    return live_state(state, functools.partial(_weights_of, weakref.ref(module)))


def _weights_of(known: Callable[[], Optional[nn.Module]]) -> Optional[Weights]:
    """Return the weights of which those of a module are a part, once it is on a device."""
    module = known()
    session = None if module is None else known_session(module)
    if session is None and module is not None:
        owners = map(owner_of, named_tensors(module).values())
        owner = next((owner for owner in owners if owner is not None), None)
        session = None if owner is None else owner.loop.session
    return None if session is None else session.weights


def _is_made_by_library(frame: Any) -> bool:
    """Return whether this library makes an optimizer of its own, as for a device's program, and passes no call on."""
    while frame is not None and owner_of_file(frame.f_code.co_filename) is Owner.LIBRARY:
        file = frame.f_code.co_filename
        if file.startswith(OURS) and not file.startswith(_PASSING_ON):
            return True
        frame = frame.f_back
    return False


def _has_dropout(model: nn.Module) -> bool:
    """Return whether a model drops values: in layers of dropout, or in those of recurrence and attention."""
    rates = [getattr(each, "p" if isinstance(each, DROPOUT) else "dropout", 0.0) for each in model.modules()]
    return any(isinstance(rate, float) and rate > 0 for rate in rates)


class CapturedLoops(CaptureObserver):
    """The models and optimizers that a program's loops use, captured when they are made or called."""

    def __init__(self, substitutes: Substitutes, config: IPUConfig) -> None:
        self._substitutes, self._config = substitutes, leaving_device(config)
        self._models: weakref.WeakSet[CapturedModel] = weakref.WeakSet()
        self._evaluations: weakref.WeakKeyDictionary[IPUSession, CapturedEvaluation] = weakref.WeakKeyDictionary()
        self._optimizers: weakref.WeakKeyDictionary[torch.optim.Optimizer, Any] = weakref.WeakKeyDictionary()
        # Modules whose `parameters()` were called since the last optimizer was made, and those it was made for.
        self._read_from: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._roots: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._draws_noted = False
        # Optimizers whose steps on the host were reported.
        self._told: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()

    def release(self) -> None:
        """Give models and optimizers back as the ordinary ones they were, with the newest weights."""
        for loop in {model.loop for model in list(self._models)}:
            loop.close(program_ends=True)
        for optimizer, hook in list(self._optimizers.items()):
            hook.remove()
            release_optimizer(optimizer)

    def module_call(self, original: Callable[..., Any]) -> Any:
        @functools.wraps(original)
        def __call__(module: Any, *args: Any, **kwargs: Any) -> Any:
            if EAGER.is_on:
                return original(module, *args, **kwargs)
            if type(module).__module__.startswith(_OURS):
                # An executor of PopTorch's own: the models in it are traced as they are.
                with EAGER:
                    return original(module, *args, **kwargs)
            if within(module) is not module:
                leave_out_compiler(module)
                return original(module, *args, **kwargs)
            if not (has_parameters(module) or self._may_write(module, (args, kwargs))):
                return original(module, *args, **kwargs)
            if torch.utils.data.get_worker_info() is not None:
                return original(module, *args, **kwargs)
            if isinstance(module, torch.jit.ScriptModule):
                raise self._substitutes.refusal(
                    f"{type(module).__name__}()",
                    "torch.jit replaces a model by code that PopTorch cannot trace. Call the model itself.",
                )
            refuse_transforms(module, functools.partial(self._has_own_weights, module))
            session = self._session_that_trains(module)
            if session is not None:
                return self._evaluate(session, module, args, kwargs)
            for whole in self._roots_of(module):
                if captured(whole) is None and not consists_of_captured(whole):
                    self._capture(whole)
            composed = module.training and torch.is_grad_enabled() and consists_of_captured(module)
            if composed or module in RUN_BY_PYTHON:
                # Its own code is the loop's, as that of a wrapper, or of some layers of a model (`model[:2]`).
                return original(module, *args, **kwargs)
            self._capture(module)
            return module(*args, **kwargs)

        return __call__

    def _has_own_weights(self, module: nn.Module) -> bool:
        """Return whether an optimizer holds the weights that a module has now, and was made for the module."""
        held = held_parameters()
        return module in self._roots and all(id(parameter) in held for parameter in all_parameters(module))

    def _may_write(self, module: nn.Module, arguments: Any) -> bool:
        """Return whether a module without parameters, as a part of a trained step, may write into its buffers."""
        held = module.training and torch.is_grad_enabled() and any(each is not None for each in module.buffers())
        return held and bool(deferred_values(arguments)) and bool(self._roots_of(module))

    def named_parameters(self, frame: Any, original: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
        self._read_from.add(within(module))
        return original(module, *args, **kwargs)

    def captured(self, model: CapturedModel) -> None:
        """Remember a captured model, which an Accelerator may have captured, to release it at the end."""
        self._substitutes.use_settings()
        self._models.add(model)

    def called(self, model: CapturedModel, recorded: bool) -> None:
        became = "recorded for the device step of backward() and step()" if recorded else "an inference program"
        self._substitutes.note(f"{type(model.model).__name__}()", became)
        if recorded and not self._draws_noted and _has_dropout(model.model):
            self._draws_noted = True
            self._substitutes.note("dropout", "the device draws other random numbers than a GPU")

    def uses(self, weight: Any) -> None:
        """Capture the model that has a weight, if an optimizer was made for its parameters."""
        for root in [root for root in self._roots if any(each is weight for each in all_parameters(root))]:
            self._capture(root)

    def went_backward(self, loop: Any) -> None:
        """Log a backward pass, and refuse one whose gradients no optimizer would use."""
        if loop.updates.on_host:
            self._substitutes.note("backward()", "a device call, which brings gradients back for updates on the host")
            return
        self._substitutes.note("backward()", "part of the device step")
        if not (is_held(loop.module) or loop.updates.may_leave):
            raise self._substitutes.refusal(
                "backward()",
                f"no optimizer of torch.optim holds the weights of {loop.name}, so they are updated by hand, and the "
                "device does not return gradients. Use an optimizer.",
            )

    def optimizer(self, frame: Any, original: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        original(optimizer, *args, **kwargs)
        if not _is_made_by_library(frame):
            self._capture_optimizer(optimizer)

    def adopt(self, existing: Existing) -> None:
        """Capture the models that the program made before."""
        for optimizer in existing.optimizers:
            self._read_from.update(existing.modules)
            self._capture_optimizer(optimizer)

    def _capture_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        if type(optimizer).__module__.startswith(_OURS):
            return
        self._optimizers[optimizer] = optimizer.register_step_pre_hook(self._refuse_host_step)
        capture_optimizer(optimizer, alone=True, setup=setup_of(self._config, observer=self))
        self._note_roots(optimizer)

    def _session_that_trains(self, module: nn.Module) -> Optional[IPUSession]:
        """Return the session of a model with a trainer of Ignite's that a module is, or is a part of."""
        models = [model for model in (module, *self._roots_of(module)) if captured(model) is None]
        sessions = map(IPUSession.of, models)
        return next((session for session in sessions if session.training is not None), None)

    def _evaluate(self, session: IPUSession, model: nn.Module, args: Any, kwargs: Any) -> Any:
        """Return the result of a model, or a part of one, that a trainer of Ignite trains."""
        if model.training and torch.is_grad_enabled():
            raise self._substitutes.refusal(
                f"{type(model).__name__}()",
                "a trainer trains this model already, and one program trains a model. To see its results, "
                "call model.eval() and use torch.no_grad(). Code to be trained belongs in the trainer's model, "
                "model_fn or loss_fn.",
            )
        self._substitutes.note(f"{type(model).__name__}()", "an inference program")
        evaluation = self._evaluations.get(session)
        if evaluation is None:
            evaluation = self._evaluations[session] = CapturedEvaluation(
                session, self._config, Places.of(session.model, self._config)
            )
        with torch.no_grad():
            return evaluation.run(args, kwargs, model)

    def _capture(self, module: nn.Module) -> None:
        refuse_for_capture(self._config)
        capture_model(module, self._config, observer=self)

    def _note_roots(self, optimizer: torch.optim.Optimizer) -> None:
        """Remember the largest modules all of whose parameters an optimizer has been given."""
        held = held_by(optimizer)
        read_from = [module for module in self._read_from if not type(module).__module__.startswith(_OURS)]
        owned = [(module, [id(parameter) for parameter in all_parameters(module)]) for module in read_from]
        found = [module for module, own in owned if own and held.issuperset(own)]
        inner = {id(child) for module in found for child in module.modules() if child is not module}
        self._read_from.clear()
        self._roots.update(module for module in found if id(module) not in inner)

    def _roots_of(self, module: nn.Module) -> List[nn.Module]:
        """Return the modules that optimizers were made for and of which this one is a part."""
        roots = [root for root in self._roots if root is not module]
        return [root for root in roots if any(child is module for child in root.modules())]

    def _note_set_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        """Report that PyTorch makes the steps of an optimizer with gradients that the script has put there."""
        name = f"{type(optimizer).__name__}.step()"
        self._substitutes.note(name, "on the host, by PyTorch")
        if optimizer not in self._told:
            self._told.add(optimizer)
            logger.warning(
                "%s at %s updates weights on the host: the loop has set their gradients, and no loss of a captured "
                "model goes back to them.",
                name,
                current_line(),
            )

    def _refuse_host_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        owners = [owner for owner in map(owner_of, held_tensors(optimizer)) if owner is not None]
        # A model is captured at its first call, which may be in the closure; parts of it may have been called before.
        with_closure = any(map(callable, (*args[1:], *kwargs.values())))
        unknown = self._config.update == "host" or (self._config.update == "auto" and with_closure)
        loops = [owner.loop for owner in owners]
        on_host = bool(unknown or loops) and all(
            each.updates.on_host or (unknown and is_untrained(each)) for each in loops
        )
        if on_host:
            self._substitutes.note(f"{type(optimizer).__name__}.step()", "on the host, by PyTorch")
            return
        reason = host_step_reason(optimizer, args, kwargs)
        if reason is None:
            return
        may_leave = self._config.update == "auto" and not (loops or with_closure)
        if not may_leave or is_differentiated_on_host(optimizer):
            raise self._substitutes.refusal(f"{type(optimizer).__name__}.step()", reason)
        self._note_set_gradients(optimizer)
