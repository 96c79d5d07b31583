"""`Parts`: the modules that a model consists of at a moment, which can be put back when others have replaced them."""

from __future__ import annotations

import contextlib
import weakref
from typing import Any, Dict, Iterable, Iterator, List, Set

from torch import nn

from ignite_ipu.torch_names.modules import buffers_of, forward_pre_hooks_of, modules_of, parameters_of

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
        """Have the model consist of these in the `with` block."""
        model = self._model()
        assert model is not None
        modules = [model, *self._inner]
        now = list(map(_State, modules))
        # An attribute of the name of a tensor hides it.
        names = [then.names | after.names for then, after in zip(self._states, now)]
        hidden = list(map(_without_attributes, modules, names))
        for module, then in zip(modules, self._states):
            then.put(module)
        try:
            yield
        finally:
            for module, after in zip(modules, now):
                after.put(module)
            for module, own, attributes in zip(modules, names, hidden):
                _without_attributes(module, own)
                vars(module).update(attributes)


class _State:
    """One module at a moment.

    Attributes:
        names: The names of its tensors and modules.
    """

    def __init__(self, module: nn.Module) -> None:
        self._class, self._properties = type(module), _properties_of(type(module))
        self._tables = [dict(table.items()) for table in _tables_of(module)]
        self.names: Set[str] = set().union(*self._tables[:-1])

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
        for table, entries in zip(_tables_of(module), self._tables):
            if list(table) != list(entries) or any(entries[name] is not each for name, each in table.items()):
                table.clear()
                table.update(entries)


def _without_attributes(module: nn.Module, names: Iterable[str]) -> Dict[str, Any]:
    """Remove and return attributes of a module by their names."""
    own = vars(module)
    return {name: own.pop(name) for name in names if name in own}


def _tables_of(module: nn.Module) -> List[Dict[Any, Any]]:
    """Return the tables of tensors and modules of a module, and last that of its hooks."""
    return [parameters_of(module), buffers_of(module), modules_of(module), forward_pre_hooks_of(module)]


def _properties_of(kind: type) -> Dict[str, property]:
    """Return the properties of a class. The end of a parametrization takes that of its tensor away."""
    return {name: value for name, value in vars(kind).items() if type(value) is property}
