"""`ipu_step`: a hand-written Ignite training step whose body runs as one device step."""

from __future__ import annotations

import builtins
import functools
import inspect
from typing import Any, Callable, Iterator, List, Optional, Sequence, Set, Tuple, Union

import torch
from ignite.engine.deterministic import DeterministicEngine
from torch import nn

from ignite_ipu import backend
from ignite_ipu.deferred.graph.owners import OPTIMIZERS, is_held
from ignite_ipu.deferred.graph.step_graph import CALL
from ignite_ipu.deferred.model.capturing import capture_model, captured
from ignite_ipu.deferred.model.joined import captured_by
from ignite_ipu.deferred.model.model import CapturedModel
from ignite_ipu.deferred.model.optimizer import capture_optimizer
from ignite_ipu.deferred.settings import refuse_for_capture
from ignite_ipu.deferred.tensor.deferred_values import known_in
from ignite_ipu.errors import CaptureError
from ignite_ipu.program.config import Configuration, IPUConfig
from ignite_ipu.program.guards.names import Named
from ignite_ipu.program.refusal_frames import brief_refusals
from ignite_ipu.program.user_code import loaded_by
from ignite_ipu.session.data_parallel import adopt
from ignite_ipu.session.processes import unwrapped
from ignite_ipu.torch_names.modules import has_parameters

Step = Callable[..., Any]
_SEEDS = 2**31
# Containers that are searched. Handlers may read deferred tensors in anything else.
_NESTED = (torch.Tensor, tuple, list, dict)


@brief_refusals
def ipu_step(
    train_step: Step,
    *,
    model: Optional[nn.Module] = None,
    optimizer: Optional[torch.optim.Optimizer] = None,
    config: Configuration = None,
    options: Optional[Any] = None,
    replication_factor: Union[int, str, None] = None,
    max_grad_norm: Optional[float] = None,
    seed: Optional[int] = None,
) -> Step:
    """Return a step function for `Engine` that runs the operations of `train_step` as one device step.

    `Engine(ipu_step(train_step))` takes the place of `Engine(train_step)`: the step calls the model, computes a loss
    with any functions, calls `loss.backward()` and `optimizer.step()`. Several backward calls before one
    `optimizer.step()` accumulate their gradients in one device call, and may come in several iterations: results of the
    step have values from the iteration on in which it calls `optimizer.step()`.

    Args:
        train_step: Called with engine and batch.
        model: The model that is trained. When None, it is found among the objects that the function's code names:
            variables, attributes, and elements of containers. So are models without parameters that require gradients,
            whose calls are part of the step. Objects that are not there yet are found at the first call.
        optimizer: Its optimizer, found in the same way when None.
        config: Everything else: an `IPUConfig`, a mapping or the path of a file.
        options, replication_factor, max_grad_norm, seed: As in `IPUConfig`. deviceIterations and gradientAccumulation
            stay 1, replicas share the micro-batches of an update, and `torch.nn.utils.clip_grad_norm_` is refused.

    In a `DeterministicEngine` the device's random numbers follow the host's seed and the iteration: a resumed run draws
    those of the uninterrupted one. With `IGNITE_IPU_BACKEND=native` it is `train_step` itself.

    Raises:
        CaptureError: No model or no optimizer is found, or the options set values that only the step can set.
        OptionsError, SessionError: The options or the model cannot.
        ValueError: `max_grad_norm` is given in a native run, where the step has to clip itself.
    """
    settings = IPUConfig.of(
        config, options=options, replication_factor=replication_factor, max_grad_norm=max_grad_norm, seed=seed
    )
    if backend.choice() == "native":
        if settings.max_grad_norm is not None:
            raise ValueError(
                f"max_grad_norm={settings.max_grad_norm!r}: this run is native (IGNITE_IPU_BACKEND=native), where "
                "nothing clips the gradients for the step. Run it on the emulator or an IPU."
            )
        return train_step
    refuse_for_capture(settings)
    return _Step(train_step, functools.partial(_captured, train_step, settings, model, optimizer))


def _captured(
    train_step: Step,
    settings: IPUConfig,
    model: Optional[nn.Module],
    optimizer: Optional[torch.optim.Optimizer],
    is_called: bool,
) -> List[CapturedModel]:
    """Capture the models and optimizers that a step uses; none before it is called, if some have yet to be assigned."""
    missing: List[str] = []
    found = [*_used_by(train_step, set(), missing), *Named([("", train_step)]).objects]
    if missing and not is_called and (model is None or optimizer is None):
        return []
    models = [model] if model is not None else _models(found)
    optimizers = [optimizer] if optimizer is not None else _unique(found, torch.optim.Optimizer)
    name = getattr(train_step, "__name__", type(train_step).__name__)
    needed: List[Tuple[str, Sequence[Any]]] = [("model", models)]
    # The optimizer of a prepared model is known, however the step reaches it.
    if not any(captured(unwrapped(module)) is not None and is_held(module) for module in models):
        needed.append(("optimizer", optimizers))
    for what, objects in needed:
        if not objects and is_called:
            raise CaptureError(
                f"{name} uses no {what} that could be found among its variables, attributes and arguments. Name it: "
                f"ipu_step({name}, {what}=...)."
            )
        if not objects:
            return []
    remedy = "remove the call and use ipu_step(..., max_grad_norm=...)"
    for module in models:
        adopt(module)
    captures = [capture_model(unwrapped(module), settings, clip_remedy=remedy) for module in models]
    for each in optimizers:
        if each not in OPTIMIZERS:
            capture_optimizer(each, setup=captures[0].loop.setup)
        captured_by(each)
    return captures


def with_known_values(step: Step, *args: Any, **kwargs: Any) -> Any:
    """Return the result of a step function, with plain tensors for known values.

    The others come with an update that has yet to run. They stay deferred, so that nothing is run for values that no
    handler reads.
    """
    call = CALL.set(object())
    try:
        output = step(*args, **kwargs)
    finally:
        CALL.reset(call)
    return known_in(output) if isinstance(output, _NESTED) else output


class _Step:
    """The step function, whose results hold plain tensors as soon as their update has run.

    Models and optimizers are captured at once, and by the first call those that were not there yet.
    """

    def __init__(self, train_step: Step, capture: Callable[[bool], List[CapturedModel]]) -> None:
        self._train_step, self._capture = train_step, capture
        capture(False)
        self._captures: List[CapturedModel] = []
        functools.update_wrapper(self, train_step)

    @property
    def captures(self) -> List[CapturedModel]:
        """The captured models."""
        if not self._captures:
            self._captures = self._capture(True)
        return self._captures

    @property
    def session(self) -> Any:
        """The session of the first model that is trained."""
        return min(self.captures, key=lambda capture: capture.is_frozen).session

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        captures = self.captures
        if args and isinstance(args[0], DeterministicEngine):
            _follow_seed(args[0], captures)
        return with_known_values(self._train_step, *args, **kwargs)


def _follow_seed(engine: DeterministicEngine, captures: Sequence[CapturedModel]) -> None:
    """Have the device draw by the seed of the host and the iteration, as a run does that is resumed before it."""
    seed = (torch.initial_seed() + engine.state.iteration) % _SEEDS
    for loop in dict.fromkeys(capture.loop for capture in captures):
        for programs in loop.updates.programs:
            programs.stream.go_on_from([seed])


def _used_by(function: Any, seen: Set[int], missing: List[str]) -> Iterator[Any]:
    """Yield the objects that a callable reaches by its closure, globals, attributes and bound arguments.

    Names of variables without a value come into `missing`.
    """
    if id(function) in seen:
        return
    seen.add(id(function))
    if isinstance(function, functools.partial):
        yield from (*function.args, *function.keywords.values())
        yield from _used_by(function.func, seen, missing)
        return
    if inspect.ismethod(function):
        yield from vars(function.__self__).values()
        yield from _used_by(function.__func__, seen, missing)
        return
    if not inspect.isfunction(function):
        yield from getattr(function, "__dict__", {}).values()
        call = vars(type(function)).get("__call__")
        if inspect.isfunction(call):
            yield from _used_by(call, seen, missing)
        return
    values = [*_variables(inspect.unwrap(function), missing), *(function.__defaults__ or ())]
    yield from values
    for value in values:
        if inspect.isfunction(value):
            yield from _used_by(value, seen, missing)


def _variables(function: Any, missing: List[str]) -> Iterator[Any]:
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or ()):
        try:
            yield cell.cell_contents
        except ValueError:
            missing.append(name)
    for name in loaded_by(code, "LOAD_GLOBAL", "LOAD_NAME"):
        if name in function.__globals__:
            yield function.__globals__[name]
        elif not hasattr(builtins, name):
            missing.append(name)


def _unique(found: Sequence[Any], kind: type) -> List[Any]:
    return list({id(each): each for each in found if isinstance(each, kind)}.values())


def _models(found: Sequence[Any]) -> List[nn.Module]:
    """Return the modules with parameters that are no parts of others."""
    modules = [module for module in _unique(found, nn.Module) if has_parameters(module)]
    inner = {id(child) for module in modules for child in module.modules() if child is not module}
    return [module for module in modules if id(module) not in inner]
