"""State dictionaries that a model hands out, and that stay the newest."""

from __future__ import annotations

import functools
import weakref
from collections import OrderedDict, UserDict
from typing import Any, Callable, List, Optional, Sequence

from torch import nn

from ignite_ipu.session.weights.access import note_alias
from ignite_ipu.session.weights.tracker import Weights
from ignite_ipu.torch_names.modules import STATE_DICT_HOOKS


def _refreshed(name: str) -> Any:
    """Return a dictionary's method that brings the newest values first."""
    method = getattr(OrderedDict, name)

    @functools.wraps(method)
    def call(self: LiveState, *args: Any, **kwargs: Any) -> Any:
        for source in self.sources:
            weights = source()
            if weights is not None:
                weights.show()
        if not self.noted:
            self.noted, holder = True, weakref.ref(self)
            for tensor in OrderedDict.values(self):
                note_alias(tensor, holder)
        return method(self, *args, **kwargs)

    return call


class LiveState(OrderedDict):  # type: ignore[type-arg]
    """A model's state dictionary, whose tensors are the newest whenever somebody reads one of them from it.

    Natively they are the memory of the model's weights; here the newest may be on the device. Copies and files of it
    are ordinary dictionaries.

    Attributes:
        sources: Whose weights it shows; each returns None when that is over. Never changed in place.
        noted: Whether somebody may have taken tensors out of it.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.sources: Sequence[Callable[[], Optional[Weights]]] = ()
        self.noted = False
        super().__init__(*args, **kwargs)

    __getitem__, get, pop = map(_refreshed, ("__getitem__", "get", "pop"))
    popitem, items, values = map(_refreshed, ("popitem", "items", "values"))

    def copy(self) -> LiveState:
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
        own = ("sources", "noted")
        ordinary.__dict__.update({name: value for name, value in self.__dict__.items() if name not in own})
        return ordinary


def live_state(state: Any, source: Callable[[], Optional[Weights]]) -> LiveState:
    """Return a module's state dictionary as one that also shows the newest of `source`."""
    live = LiveState(state)
    live.__dict__.update(getattr(state, "__dict__", {}))  # the versions of the modules
    live.sources = [*live.sources, source]
    return live


class ModelStates:
    """Has the states that a model and its parts hand out show the newest weights, after a call of `before`.

    What is loaded into a model, PyTorch writes into its tensors, which is noticed there. To end it, call `leave`.
    """

    leave: weakref.finalize[Any, Weights]

    def __init__(self, model: nn.Module, weights: Weights, before: Callable[[], None]) -> None:
        self._model, self._weights, self._before = model, weights, weakref.WeakMethod(before)
        self._begin()

    def follow(self) -> None:
        """Do so again, after `leave`."""
        if not self.leave.alive:
            self._begin()

    def _begin(self) -> None:
        shows, hooked = functools.partial(_show_newest, weakref.ref(self._weights), self._before), []
        for module in self._model.modules():
            hooks: Any = getattr(module, STATE_DICT_HOOKS)
            if not isinstance(hooks, _StateDictHooks):
                hooks = _StateDictHooks(hooks)
                setattr(module, STATE_DICT_HOOKS, hooks)
            hooks.of_devices.append(shows)
            hooked.append(hooks.of_devices)
        self.leave = weakref.finalize(self._weights, _remove, shows, hooked)
        self.leave.atexit = False


class _StateDictHooks(UserDict):  # type: ignore[type-arg]
    """A module's own hooks, which copies and files have, then those that are there while it is on a device."""

    def __init__(self, own: Any) -> None:
        self.data, self.of_devices = own, []  # type: Any, List[Callable[..., Any]]

    def values(self) -> Any:
        """Return the hooks that `module.state_dict()` calls."""
        return [*self.data.values(), *self.of_devices]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.data.__reduce_ex__(protocol)


def _show_newest(
    known: Callable[[], Optional[Weights]],
    before: Callable[[], Optional[Callable[[], None]]],
    module: nn.Module,
    state: Any,
    prefix: str,
    metadata: Any,
) -> Optional[LiveState]:
    if prefix:
        return None  # it is a part of a larger one
    call = before()
    if call is not None:
        call()
    return live_state(state, known)


def _remove(hook: Any, hooked: List[List[Any]]) -> None:
    for hooks in hooked:
        hooks.remove(hook)
