"""State dictionaries that a model hands out, and that stay the newest."""

from __future__ import annotations

import functools
import weakref
from collections import OrderedDict, UserDict
from typing import Any, Callable, Container, ItemsView, Iterator, List, Optional, Sequence, Tuple, ValuesView

import torch
from torch import nn

from ignite_ipu.program.tensors.raw import plain
from ignite_ipu.session.weights.aliases import own_alias
from ignite_ipu.session.weights.tracker import Weights
from ignite_ipu.torch_names.modules import STATE_DICT_HOOKS
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass


class LiveState(OrderedDict):  # type: ignore[type-arg]
    """A model's state dictionary whose tensors hold the newest weights whenever one of them is read from it.

    In eager PyTorch they share the memory of the model's weights; here the newest may be on the device. Copies and
    files of it are ordinary dictionaries.

    The dictionary hands out tensors with the same memory and keeps no reference to them. As long as a caller keeps one
    of them, the weights come to the host after each update.

    Attributes:
        sources: Functions that return the owner of the weights, or None once it is gone. Never changed in place.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.sources: Sequence[Callable[[], Optional[Weights]]] = ()
        self._handed_out: weakref.WeakValueDictionary[Any, torch.Tensor] = weakref.WeakValueDictionary()
        super().__init__(*args, **kwargs)

    def __getitem__(self, key: Any) -> Any:
        self._bring()
        return self._hand_out(key, super().__getitem__(key))

    def get(self, key: Any, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401

    def pop(self, key: Any, *default: Any) -> Any:
        found = self._hand_out(key, super().__getitem__(key)) if key in self else None
        self._bring()
        popped = super().pop(key, *default)
        return popped if found is None else found

    def popitem(self, last: bool = True) -> Tuple[Any, Any]:
        self._bring()
        key, value = super().popitem(last)
        return key, self._hand_out(key, value)

    def items(self) -> Any:
        return _Items(self)

    def values(self) -> Any:
        return _Values(self)

    def copy(self) -> LiveState:
        return self.__copy__()

    def __copy__(self) -> LiveState:
        duplicate = LiveState(OrderedDict.items(self))
        own = duplicate.__dict__
        duplicate.__dict__.update({**self.__dict__, "_handed_out": own["_handed_out"]})
        return duplicate

    def __repr__(self) -> str:
        return repr(self._ordinary())

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._ordinary().__reduce_ex__(protocol)

    def _bring(self) -> None:
        """Bring the newest weights to the host."""
        for source in self.sources:
            weights = source()
            if weights is not None:
                weights.show()

    def _hand_out(self, key: Any, value: Any) -> Any:
        if type(value) is not torch.Tensor:
            return value
        found = self._handed_out.get(key)
        if found is None or not found.is_set_to(value):
            found = self._handed_out[key] = plain(value)
        return found

    def _ordinary(self) -> OrderedDict[str, Any]:
        ordinary: OrderedDict[str, Any] = OrderedDict(self)
        own = ("sources", "_handed_out")
        ordinary.__dict__.update({name: value for name, value in self.__dict__.items() if name not in own})
        return ordinary


class _Items(ItemsView[Any, Any]):
    """The view that `items()` returns, which goes backwards, too."""

    def __init__(self, state: LiveState) -> None:
        super().__init__(state)
        self._state = state

    def __reversed__(self) -> Iterator[Tuple[Any, Any]]:
        return ((key, self._state[key]) for key in reversed(self._state))


class _Values(ValuesView[Any]):
    """The view that `values()` returns, which goes backwards, too."""

    def __init__(self, state: LiveState) -> None:
        super().__init__(state)
        self._state = state

    def __reversed__(self) -> Iterator[Any]:
        return (self._state[key] for key in reversed(self._state))


def live_state(state: Any, source: Callable[[], Optional[Weights]], buffers: Container[int] = frozenset()) -> LiveState:
    """Return a module's state dictionary as one that also shows the newest of `source`.

    Tensors whose `id()` is in `buffers` are the module's own, and stay in it as they are.
    """
    own = OrderedDict.items(state) if isinstance(state, OrderedDict) else state.items()
    live = LiveState([(key, value if id(value) in buffers else _unnoticed(value)) for key, value in own])
    live.__dict__.update(
        {key: value for key, value in getattr(state, "__dict__", {}).items() if key not in live.__dict__}
    )  # versions
    live.sources = [*getattr(state, "sources", ()), source]
    return live


def _unnoticed(value: Any) -> Any:
    """Return the same memory as another tensor, which nothing but the dictionary keeps."""
    return own_alias(value) if type(value) is torch.Tensor else value


class ModelStates:
    """Has the states that a model and its parts hand out show the newest weights, after a call of `before`.

    PyTorch writes loaded values into a model's tensors, which is detected there. To end it, call `leave`.
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
    with DisableTorchFunctionSubclass():
        return live_state(state, known, {id(buffer) for buffer in module.buffers()})


def _remove(hook: Any, hooked: List[List[Any]]) -> None:
    for hooks in hooked:
        hooks.remove(hook)
