"""State dictionaries of a model: one that is loaded is the newest, and one that was handed out stays the newest."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections import OrderedDict
from typing import Any, Callable, List, Optional, Sequence

from torch import nn

from ignite_ipu.session.weights.tracker import Weights

__all__ = ["LiveState", "ModelStates", "live_state"]


def _refreshed(name: str) -> Any:
    """Return a dictionary's method that brings the newest values first."""
    method = getattr(OrderedDict, name)

    @functools.wraps(method)
    def call(self: LiveState, *args: Any, **kwargs: Any) -> Any:
        for source in self.sources:
            weights = source()
            if weights is not None:
                weights.show()
        return method(self, *args, **kwargs)

    return call


class LiveState(OrderedDict):  # type: ignore[type-arg]
    """A model's state dictionary, whose tensors are the newest whenever somebody reads one of them from it.

    Natively they are the memory of the model's weights; here the newest may be on the device. Copies and files of it
    are ordinary dictionaries.

    Attributes:
        sources: Whose weights it shows; each returns None when that is over. Never changed in place.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.sources: Sequence[Callable[[], Optional[Weights]]] = ()
        super().__init__(*args, **kwargs)

    __getitem__, get, pop = map(_refreshed, ("__getitem__", "get", "pop"))
    popitem, items, values = map(_refreshed, ("popitem", "items", "values"))

    def copy(self) -> LiveState:
        """Return another dictionary with the same tensors."""
        return self.__copy__()

    def __copy__(self) -> LiveState:
        duplicate = LiveState(self)
        duplicate.__dict__.update(self.__dict__)
        return duplicate

    def __repr__(self) -> str:
        return repr(self._ordinary())

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._ordinary().__reduce_ex__(protocol)

    def _ordinary(self) -> OrderedDict[str, Any]:
        ordinary: OrderedDict[str, Any] = OrderedDict(self)
        ordinary.__dict__.update({name: value for name, value in self.__dict__.items() if name != "sources"})
        return ordinary


def live_state(state: Any, source: Callable[[], Optional[Weights]]) -> LiveState:
    """Return a module's state dictionary as one that also shows the newest of `source`."""
    live = LiveState(state)
    live.__dict__.update(getattr(state, "__dict__", {}))  # the versions of the modules
    live.sources = [*live.sources, source]
    return live


class ModelStates:
    """Tells a model's weights when something is loaded into the model, and when a state handed out is read.

    Args:
        before: A bound method, held weakly: called before a state is handed out.
    """

    def __init__(self, model: nn.Module, weights: Weights, before: Callable[[], None]) -> None:
        self._model, self._weights, self._before = model, weights, weakref.WeakMethod(before)
        self.leave = _follow(model, weights, self._before)

    def follow(self) -> None:
        """Tell it again, after `leave`."""
        if not self.leave.alive:
            self.leave = _follow(self._model, self._weights, self._before)


def _follow(
    model: nn.Module, weights: Weights, before: Callable[[], Optional[Callable[[], None]]]
) -> weakref.finalize[Any, Weights]:
    shows = _ShowsNewest(weights, before)
    handles = [model.register_load_state_dict_post_hook(_NotesLoading(weights))]  # type: ignore[no-untyped-call]
    handles += [module._register_state_dict_hook(shows) for module in model.modules()]  # type: ignore[no-untyped-call]
    leave = weakref.finalize(weights, _remove, handles)
    leave.atexit = False
    return leave


class _Hook:
    """A hook of a model that is on a device."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weakref.ref(weights)

    def __reduce__(self) -> Any:
        # A pickle or a copy of the model is on no device. In its place goes something that does nothing when it is
        # called, and that can be loaded where this library is not installed.
        return getattr, (contextlib.nullcontext(), "__exit__")


class _NotesLoading(_Hook):
    """Notices `model.load_state_dict`: what it loads is the newest."""

    def __call__(self, module: nn.Module, incompatible_keys: Any) -> None:
        weights = self._weights()
        if weights is not None:
            weights.host_changed()


class _ShowsNewest(_Hook):
    """Has `module.state_dict()` return a `LiveState`."""

    def __init__(self, weights: Weights, before: Callable[[], Optional[Callable[[], None]]]) -> None:
        super().__init__(weights)
        self._before = before

    def __call__(self, module: nn.Module, state: Any, prefix: str, metadata: Any) -> Optional[LiveState]:
        if prefix:
            return None  # it is a part of a larger one
        before = self._before()
        if before is not None:
            before()
        return live_state(state, self._weights)


def _remove(handles: List[Any]) -> None:
    for handle in handles:
        handle.remove()
