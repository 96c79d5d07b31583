"""Schedulers among an engine's handlers: Ignite's, torch's in Ignite's wrapper, and functions that step torch's."""

from __future__ import annotations

import weakref
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from ignite.engine import Engine
from ignite.handlers import param_scheduler
from torch.optim import Optimizer, lr_scheduler

from ignite_ipu.torch_names.engines import event_handlers_of

_IGNITE = (param_scheduler.BaseParamScheduler, param_scheduler.ParamGroupScheduler)
_TORCH = (lr_scheduler.LRScheduler,)
_BY_METRIC: Any = getattr(param_scheduler, "ReduceLROnPlateauScheduler", ())
_STEP = "step"


class SchedulingHandler(NamedTuple):
    """A handler that only calls its schedulers.

    Attributes:
        event: The event of the engine that it handles.
        call: Calls it as the engine does.
        schedulers: The schedulers that it steps.
    """

    event: Any
    call: Callable[[], Any]
    schedulers: List[Any]


def scheduling_handlers(engine: Engine) -> Tuple[List[SchedulingHandler], List[str]]:
    """Return the handlers that only step schedulers, and the names of those that use one in another way."""
    found: List[SchedulingHandler] = []
    others: List[str] = []
    for event, function, args, kwargs in _entries(engine):
        schedulers, alone = _schedulers_of(_inner(function))
        if alone:
            found.append(SchedulingHandler(event, _call(engine, function, args, kwargs), schedulers))
        elif schedulers:
            others.append(getattr(_inner(function), "__qualname__", type(_inner(function)).__name__))
    return found, others


def scheduled_names(engine: Engine, optimizer: Optional[Optimizer]) -> Set[str]:
    """Return the names of an optimizer's hyper-parameters that schedulers among an engine's handlers change."""
    groups = [] if optimizer is None else [id(group) for group in optimizer.param_groups]
    used = [each for _, function, _, _ in _entries(engine) for each in _schedulers_of(_inner(function))[0]]
    single = [part for each in used for part in _parts(each)]
    return {each.param_name for each in single if any(id(group) in groups for group in each.optimizer_param_groups)}


def _parts(scheduler: Any) -> Iterator[Any]:
    """Yield the schedulers of parameters of an optimizer that one of Ignite's consists of."""
    inner = getattr(scheduler, "schedulers", None)
    if inner is not None:
        for each in inner:
            yield from _parts(each)
    elif hasattr(scheduler, "param_name") and hasattr(scheduler, "optimizer_param_groups"):
        yield scheduler


def _entries(engine: Engine) -> Iterator[Tuple[Any, Any, Sequence[Any], Dict[str, Any]]]:
    for event, entries in event_handlers_of(engine).items():
        for function, args, kwargs in entries:
            yield event, function, args, kwargs


def _call(engine: Engine, function: Any, args: Sequence[Any], kwargs: Dict[str, Any]) -> Callable[[], Any]:
    given = [engine if isinstance(each, weakref.ref) else each for each in args]  # Ignite's reference to the engine
    return lambda: function(*given, **kwargs)


def _inner(function: Any) -> Any:
    """Return the handler within the function that Ignite makes of one with a filter."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


def _schedulers_of(handler: Any) -> Tuple[List[Any], bool]:
    """Return the schedulers that a handler is or uses, and whether it does nothing but step them."""
    owner = getattr(handler, "__self__", handler)
    if isinstance(owner, _IGNITE):
        return [owner], not isinstance(owner, _BY_METRIC)
    if isinstance(owner, _TORCH):
        return [owner], True
    code = getattr(handler, "__code__", None)
    if code is None:
        return [], False
    cells = zip(code.co_freevars, getattr(handler, "__closure__", None) or ())
    named: Dict[str, Any] = {name: handler.__globals__[name] for name in code.co_names if name in handler.__globals__}
    named.update((name, cell.cell_contents) for name, cell in cells if _is_filled(cell))
    schedulers = [value for value in named.values() if isinstance(value, (*_TORCH, *_IGNITE))]
    others = [value for value in named.values() if not any(value is each for each in schedulers)]
    return schedulers, not others and set(code.co_names) - set(named) <= {_STEP}


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
