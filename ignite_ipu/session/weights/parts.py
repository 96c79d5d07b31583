"""`Parts`: the modules that a model consists of at a moment, which can be put back when others have replaced them."""

from __future__ import annotations

import contextlib
import weakref
from typing import Any, Callable, ContextManager, Dict, Iterable, Iterator, List, Set

from torch import nn

from ignite_ipu.torch_names.modules import buffers_of, hook_tables_of, modules_of, parameters_of

_set_class = object.__dict__["__class__"].__set__


class Parts:
    """The modules of a model at a moment: of each the class, the tables of tensors and modules, and the hooks.

    Classes and hooks belong to these, as they compute tensors from others: `torch.nn.utils.parametrize` gives a module
    another class, `torch.nn.utils.prune` a hook.
    """

    def __init__(self, model: nn.Module) -> None:
        # The model itself has no other reference here, and lives as long as the script wants.
        self._model, (_, *self._inner) = weakref.ref(model), model.modules()
        self._states = list(map(_State, [model, *self._inner]))

    @contextlib.contextmanager
    def put_back(self) -> Iterator[None]:
        """Have the model consist of these, with their tensors, in the `with` block."""
        modules = self._modules()
        # An attribute of the name of a tensor hides it.
        names = [then.names | _State(module).names for module, then in zip(modules, self._states)]
        hidden = list(map(_without_attributes, modules, names))
        try:
            with self._exchanged(_State.put):
                yield
        finally:
            for module, own, attributes in zip(modules, names, hidden):
                _without_attributes(module, own)
                vars(module).update(attributes)

    def put_modules_back(self) -> ContextManager[None]:
        """Return a context in which the model consists of these, with their hooks, and has the tensors of now.

        A trace has tensors of its own in them.
        """
        return self._exchanged(_State.put_modules)

    @contextlib.contextmanager
    def _exchanged(self, put: Callable[[_State, nn.Module], None]) -> Iterator[None]:
        modules = self._modules()
        now = list(map(_State, modules))
        for module, then in zip(modules, self._states):
            put(then, module)
        try:
            yield
        finally:
            for module, after in zip(modules, now):
                put(after, module)

    def _modules(self) -> List[nn.Module]:
        model = self._model()
        assert model is not None
        return [model, *self._inner]


class _State:
    """One module at a moment.

    Attributes:
        names: The names of its tensors and modules.
    """

    def __init__(self, module: nn.Module) -> None:
        self._class, self._properties = type(module), _properties_of(type(module))
        self._tensors, self._modules = (_copies(tables) for tables in (_tensors_of(module), _modules_of(module)))
        self.names: Set[str] = set().union(*self._tensors, modules_of(module))

    def put(self, module: nn.Module) -> None:
        """Have the module be as it was."""
        if type(module) is not self._class:
            _set_class(module, self._class)
        properties = _properties_of(self._class)
        if properties != self._properties:
            for name in properties:
                delattr(self._class, name)
            for name, value in self._properties.items():
                setattr(self._class, name, value)
        _put(_tensors_of(module), self._tensors)
        self.put_modules(module)

    def put_modules(self, module: nn.Module) -> None:
        """Have the module consist of the modules that were in it, with its hooks of then."""
        _put(_modules_of(module), self._modules)


_Tables = List[Dict[Any, Any]]


def _copies(tables: _Tables) -> _Tables:
    return [dict(table.items()) for table in tables]


def _put(tables: _Tables, copies: _Tables) -> None:
    for table, entries in zip(tables, copies):
        if list(table) != list(entries):
            table.clear()
            table.update(entries)
        # Code may be going through a table, as nn.Sequential does.
        for name, each in entries.items():
            if table[name] is not each:
                table[name] = each


def _without_attributes(module: nn.Module, names: Iterable[str]) -> Dict[str, Any]:
    """Remove and return attributes of a module by their names."""
    own = vars(module)
    return {name: own.pop(name) for name in names if name in own}


def _tensors_of(module: nn.Module) -> _Tables:
    return [parameters_of(module), buffers_of(module)]


def _modules_of(module: nn.Module) -> _Tables:
    """Return the table of the modules in a module, and those of its hooks."""
    return [modules_of(module), *hook_tables_of(module)]


def _properties_of(kind: type) -> Dict[str, property]:
    """Return the properties of a class. The end of a parametrization takes that of its tensor away."""
    return {name: value for name, value in vars(kind).items() if type(value) is property}
