"""Calls of PyTorch's C++ code that reads tensors without `__torch_function__`, as scripts and `torch.tensor` do.

While the tensors of a model are watched, these functions are replaced. They bring the newest values of the tensors that
they are given, or that a script has, and count as an access that may write into them.
"""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from types import ModuleType
from typing import Any, Callable, Dict, Iterable, List, Tuple

import torch
from torch import nn

from ignite_ipu.program.tensors.sharing import address_of
from ignite_ipu.session.weights.access import AccessTracker, is_in_graph, note_access, reports_accesses
from ignite_ipu.torch_names.dispatch import operators_of_scripts
from ignite_ipu.torch_names.native import is_compiling, native_functions, native_methods, reached_by_script
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass

_PLAIN = frozenset((int, float, bool, complex, str, bytes, type(None), torch.Tensor, nn.Parameter, torch.dtype))
# Of long lists of numbers, also numpy's, only the types are looked at.
_HOLDING = (torch.Tensor, list, tuple, dict)


class NativeCalls:
    """Replaces the functions as long as trackers follow accesses."""

    def __init__(self) -> None:
        self._trackers: weakref.WeakSet[AccessTracker] = weakref.WeakSet()
        self._restore: List[Callable[[], None]] = []
        # The modules that have names for the functions, by how many modules there were.
        self._named: Tuple[int, List[Tuple[ModuleType, str, Any]]] = (0, [])

    def follow(self, tracker: AccessTracker) -> None:
        """Report the calls to a tracker."""
        self._trackers.add(tracker)
        if not self._restore:
            self._replace()

    def look(self) -> None:
        """Restore PyTorch's own functions if no tracker follows accesses any more."""
        if self._restore and not any(tracker.serves for tracker in list(self._trackers)):
            self._trackers.clear()
            while self._restore:
                self._restore.pop()()

    def _replace(self) -> None:
        operators = operators_of_scripts()
        known: Dict[int, Any] = {}
        for function in native_functions():
            known[id(function)] = known.get(id(function)) or self._through(function)
            operator = operators.get(id(function))
            if operator is not None:
                # TorchScript knows its operators by the identity of PyTorch's functions.
                operators[id(known[id(function)])] = operator
                self._restore.append(functools.partial(operators.__delitem__, id(known[id(function)])))
        for module, name, function in self._places({id(each): each for each in native_functions()}):
            if vars(module).get(name) is function:
                self._set(module, name, known[id(function)])
        for owner, name in native_methods():
            function = getattr(owner, name)
            value = self._through(function)
            is_static = isinstance(inspect.getattr_static(owner, name), staticmethod)
            self._set(owner, name, staticmethod(value) if is_static else value)

    def _places(self, functions: Dict[int, Any]) -> List[Tuple[ModuleType, str, Any]]:
        """Return the modules with names for functions, also those that have imported them before."""
        count = len(sys.modules)
        if self._named[0] != count:
            found: List[Tuple[ModuleType, str, Any]] = []
            for module in list(sys.modules.values()):  # a copy in one step: a finalizer may import modules
                named = dict(getattr(module, "__dict__", ())).items()  # there may be None for a module
                if not functions.keys().isdisjoint(map(id, [value for _, value in named])):
                    found += [(module, name, value) for name, value in named if id(value) in functions]
            self._named = count, found
        return self._named[1]

    def _set(self, owner: Any, name: str, value: Any) -> None:
        own = vars(owner)
        before, is_own = own.get(name), name in own

        def restore() -> None:
            if vars(owner).get(name) is value:  # it may have been replaced since
                setattr(owner, name, before) if is_own else delattr(owner, name)

        setattr(owner, name, value)
        self._restore.append(restore)

    def _through(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return function(*args, **kwargs)
            weights: Dict[int, torch.Tensor] = {}
            self._find(args, weights)
            if kwargs:
                self._find(kwargs.values(), weights)
            return _read_by(function, args, kwargs, list(weights.values())) if weights else function(*args, **kwargs)

        return call

    def _find(self, values: Iterable[Any], found: Dict[int, torch.Tensor]) -> None:
        """Find the watched tensors among values, in their collections, and among those that scripts have."""
        for value in values:
            kind = type(value)
            if kind in _PLAIN:
                continue
            if isinstance(value, torch.Tensor):
                if reports_accesses(kind):
                    found[id(value)] = value
            elif isinstance(value, (list, tuple)):
                if any(issubclass(kind, _HOLDING) for kind in set(map(type, value)) - _PLAIN):
                    self._find(value, found)
            elif isinstance(value, dict):
                self._find(value.values(), found)
            else:
                tensors, constants = reached_by_script(value)
                found.update({id(each): each for each in tensors if reports_accesses(type(each))})
                if constants:
                    found.update({id(each): each for each in self._at(set(map(address_of, constants)))})

    def _at(self, addresses: Any) -> List[torch.Tensor]:
        """Return the watched tensors with memory at some addresses."""
        with DisableTorchFunctionSubclass():
            watched = [tensor for tracker in list(self._trackers) if tracker.serves for tensor in tracker.tensors]
            return [tensor for tensor in watched if address_of(tensor) in addresses]


def _read_by(function: Callable[..., Any], args: Any, kwargs: Any, weights: List[torch.Tensor]) -> Any:
    """Return the result of C++ code, which reads weights, and may write into them or hand out their memory."""
    watched = [(weight, note_access(weight)) for weight in weights]
    for weight, trackers in watched:
        for tracker in trackers:
            tracker.note_view(weight)
    found = function(*args, **kwargs)
    in_graph = torch.is_grad_enabled() and is_in_graph(found)
    memory = address_of(found) if isinstance(found, torch.Tensor) else 0
    for weight, trackers in watched:
        with DisableTorchFunctionSubclass():
            exposed = bool(memory) and address_of(weight) == memory
        for tracker in trackers:
            tracker.in_graphs |= in_graph
            if exposed or type(found).__name__ == "PyCapsule":
                tracker.note_exposed(weight, found)
    return found


NATIVE = NativeCalls()
"""The functions of this process."""
